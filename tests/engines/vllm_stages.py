"""The policies of a run in stages, sampled with vLLM: `python vllm_stages.py POLICY OTHER FOLDER`, in two processes.

Run by test_vllm_stages.py: the evaluation of every example with stages, and a round of Chain-of-Step's DPO.
"""

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import torch
from every_trainer import DPO, make
from transformers import TrainerCallback
from trl import ModelConfig

from trl_mmreason.generation import SamplingParams
from trl_mmreason.generation.protocols import Direct
from trl_mmreason.generation.vllm_engine import VLLMProcess
from trl_mmreason.jobs.store import Store
from trl_mmreason.scripts import stages
from trl_mmreason.scripts.sections import StagedArguments

VLLM = {"dtype": "float32", "max_model_len": 1024}
NOTED = []


def vllm_processes():
    """How many vLLM processes of this one are alive."""
    return sum("vllm_engine" in " ".join(child.cmdline()) for child in psutil.Process().children())


class NotingProcess(VLLMProcess):
    """Notes which policies it samples, for how many answers, and how many vLLM processes are alive behind that."""

    def sample(self, requests, sampling_params):
        answers = super().sample(requests, sampling_params)
        NOTED.append((self.model, len(requests), vllm_processes()))
        return answers


class NotingSteps(TrainerCallback):
    """Notes how many are alive in a step of training."""

    def on_step_begin(self, *_, **__):
        NOTED.append(("step", 0, vllm_processes()))


@dataclass
class Arguments(StagedArguments):
    STAGES = {"train": "train"}


def evaluated(policies, folder, settings):
    """The text of each policy's answers, and the pipeline.

    Bytes at an answer's end that are no whole character are left out by vLLM, and here.
    """
    questions = {"dataset_name": "miniature/adding", "eval_dataset_name": "miniature/adding", "eval_rows": 6}
    common = {"use_cpu": not torch.cuda.is_available()}
    args = Arguments(**questions, train_rows=1, output_dir=str(folder), vllm=settings, common=common)
    pipeline = stages.Pipeline(args, ModelConfig())
    pipeline.evaluate(policies, Direct(), sampling_params=SamplingParams(8, 0.0))
    found = {}
    for name in policies:
        with Store(folder / "evaluation" / name / "answers.sqlite") as store:
            said = {record.id: record.payload["turns"][0]["text"] for record in store.records("answers")}
            found[name] = {id_: text.rstrip("\N{REPLACEMENT CHARACTER}") for id_, text in said.items()}
    return found, pipeline


def main(policy, other, folder):
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1"}
    if not torch.cuda.is_available():
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # vLLM reads it; compiling takes half a minute
    torch.set_num_threads(1)
    stages.VLLMProcess = NotingProcess
    results = {}
    policies = {"one": Path(policy), "other": Path(other)}
    results["vllm"], pipeline = evaluated(policies, folder / "vllm", VLLM)
    results["transformers"], _ = evaluated(policies, folder / "transformers", {})
    results["evaluating"] = [*NOTED]
    NOTED.clear()
    trained = partial(make, DPO, policy, folder / "dpo", rounds=1)
    trainer = trained(trainer_kwargs={"sampler": pipeline.sampler, "callbacks": [NotingSteps()]})
    trainer.train()
    results["training"] = NOTED
    torch.save(results, folder / f"results_{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:3], Path(sys.argv[3]))
