"""The policies of a run in stages, sampled with vLLM: `python vllm_stages.py POLICY OTHER FOLDER`, in two processes.

Run by test_vllm_stages.py: the evaluation of every example with stages, and a round of Chain-of-Step's DPO.
"""

import multiprocessing
import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from every_trainer import DPO, make
from trl import ModelConfig

from trl_mmreason import stages
from trl_mmreason.sampling import SamplingParams
from trl_mmreason.sampling.protocols import Direct
from trl_mmreason.sampling.store import Store
from trl_mmreason.sampling.vllm_engine import VLLMEngine

VLLM = {"dtype": "float32", "max_model_len": 1024}


def vllm_processes():
    """How many vLLM processes of this one are alive."""
    return sum("EngineCore" in child.name for child in multiprocessing.active_children())


class NotingEngine(VLLMEngine):
    """Notes which policies it samples, for how many answers, and how many vLLM processes are alive meanwhile."""

    noted = []

    def sample(self, requests, sampling_params):
        self.noted.append((self._model, len(requests), vllm_processes()))
        return super().sample(requests, sampling_params)


@dataclass
class Arguments(stages.StagedArguments):
    STAGES = {"train": "train"}


def evaluated(policies, folder, settings):
    """The text of each policy's answers."""
    questions = {"dataset_name": "miniature/adding", "eval_dataset_name": "miniature/adding", "eval_rows": 6}
    common = {"use_cpu": not torch.cuda.is_available()}
    args = Arguments(**questions, train_rows=1, output_dir=str(folder), vllm=settings, common=common)
    pipeline = stages.Pipeline(args, ModelConfig())
    pipeline.evaluate(policies, Direct(), sampling_params=SamplingParams(8, 0.0))
    found = {}
    for name in policies:
        with Store(folder / "evaluation" / name / "answers.sqlite") as store:
            found[name] = {record.id: record.payload["turns"][0]["text"] for record in store.records("answers")}
    return found


def main(policy, other, folder):
    # what TRL leaves behind where it has colocated a vLLM
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if not torch.cuda.is_available():
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # vLLM reads it; compiling takes half a minute
    torch.set_num_threads(1)
    stages.VLLMEngine = NotingEngine
    policies = {"one": Path(policy), "other": Path(other)}
    results = {
        way: evaluated(policies, folder / way, VLLM if way == "vllm" else {}) for way in ("vllm", "transformers")
    }
    results["evaluating"], results["alive"] = [*NotingEngine.noted], [vllm_processes()]
    NotingEngine.noted.clear()
    trainer = make(DPO, policy, folder / "dpo", rounds=1, trainer_kwargs={"sampler": partial(NotingEngine, **VLLM)})
    trainer.train()
    results["training"] = NotingEngine.noted
    results["alive"].append(vllm_processes())
    torch.save(results, folder / f"results_{os.environ['RANK']}.pt")


if __name__ == "__main__":  # vLLM's own process may import this file again
    main(*sys.argv[1:3], Path(sys.argv[3]))
