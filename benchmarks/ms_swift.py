"""GRPO on text alone with ms-swift, with TRL, and here: seconds of a step, generation included.

    python -m venv swift && swift/bin/pip install torch ms-swift msgspec       # an environment of its own
    OMP_NUM_THREADS=1 python benchmarks/ms_swift.py --swift swift/bin/swift

All three train one small Qwen2 in float32 on the same questions, 4 a step with 8 answers each, in micro-batches of 4,
with a reference. The policy ends with a probability of 1 in 64 at every token, so that answers have a long tail; all
three sample their own. Each run is a process of its own, and runs alternate. ms-swift reads pictures with torchvision,
of which there is no build for CPUs, hence text.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from rounds import median_ratio, parser_of, write_numbers
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOTrainer
from workload import BOUND, GROUP

from trl_mmreason.commands.parsers import count
from trl_mmreason.engines.config import RolloutConfig
from trl_mmreason.grpo import GroupGRPOTrainer
from trl_mmreason.miniature.models import build_model

END_EVERY = 64  # tokens, on average
SETTINGS: dict[str, Any] = {
    "num_generations": GROUP,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "max_completion_length": BOUND,
    "learning_rate": 1e-6,
    "beta": 0.04,
    "loss_type": "grpo",
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 1000,  # more than there are tokens
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "gradient_checkpointing": False,
    "use_cpu": True,
}
TRAINERS: dict[str, type[GRPOTrainer]] = {"TRL": GRPOTrainer, "here": GroupGRPOTrainer}
_REWARD = """
from swift.rewards import ORM, orms


class Parity(ORM):
    def __call__(self, completions, **_):
        return [float(sum(map(ord, text)) % 2) for text in completions]


orms["parity"] = Parity
"""


def parity(completions: list, **_: Any) -> list[float]:
    """Pays about half of all answers, as ms-swift's reward does."""
    return [float(sum(map(ord, completion[0]["content"])) % 2) for completion in completions]


def asked(number: int) -> list[dict[str, str]]:
    """A question."""
    return [{"role": "user", "content": f"What is {number} plus {number + 1}, in words and in digits?"}]


@torch.no_grad()
def save_ending_policy(folder: Path) -> None:
    """Save a random policy that ends with the same probability at every token."""
    _, processor = build_model("qwen2_5_vl", "study")
    tokenizer = processor.tokenizer
    tokenizer.chat_template = processor.chat_template
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    # A first channel that no layer writes to stays constant, and gives each token a logit of its own.
    model.model.embed_tokens.weight[:, 0] = 30.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    ids = torch.randint(len(tokenizer), (8, 64))
    hidden = model.model(ids).last_hidden_state[..., 0].mean()  # of the constant channel
    head = model.lm_head.weight
    head *= 0.1  # nearly uniform
    head[:, 0] = 0.0
    head[list(tokenizer.added_tokens_decoder)] = 0.0
    head[list(tokenizer.added_tokens_decoder), 0] = -20.0 / hidden  # ms-swift stumbles over special tokens in answers
    head[tokenizer.eos_token_id, 1:] = 0.0
    head[tokenizer.eos_token_id, 0] = torch.log(torch.tensor(len(tokenizer) / (END_EVERY - 1))) / hidden
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def train_here(name: str, folder: Path, steps: int) -> None:
    """Train with TRL's trainer or ours, and write the logged steps."""
    rows = Dataset.from_list([{"prompt": asked(number)} for number in range(4 * steps)])
    args = RolloutConfig(str(folder / name), bf16=False, disable_tqdm=True, max_steps=steps, **SETTINGS)
    trainer = TRAINERS[name](str(folder / "policy"), parity, args, train_dataset=rows)
    trainer.train()
    lines = [json.dumps(entry) for entry in trainer.state.log_history if "step_time" in entry]
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "logging.jsonl").write_text("\n".join(lines))


def swift_command(swift: str, folder: Path, steps: int) -> list[str]:
    """The command line of ms-swift."""
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"messages": asked(k)}) for k in range(4 * steps)))
    (folder / "reward.py").write_text(_REWARD)
    own = {"model": folder / "policy", "model_type": "qwen2", "template": "qwen2_5", "torch_dtype": "float32"}
    own |= {"dataset": folder / "rows.jsonl", "external_plugins": folder / "reward.py", "reward_funcs": "parity"}
    own |= {"tuner_type": "full", "split_dataset_ratio": 0, "max_steps": steps, "output_dir": folder / "ms-swift"}
    options = [str(part) for name, value in {**own, **SETTINGS}.items() for part in (f"--{name}", value)]
    return [swift, "rlhf", "--rlhf_type", "grpo", *options]


def logged(folder: Path) -> tuple[float, float]:
    """Median seconds of a step but for the first, and tokens of an answer in the mean."""
    (file,) = folder.rglob("logging.jsonl")
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    steps = [entry for entry in entries if "step_time" in entry][1:]
    seconds = [float(entry["step_time"]) for entry in steps]
    return statistics.median(seconds), statistics.mean(float(entry["completions/mean_length"]) for entry in steps)


def main() -> None:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--swift", default="swift", help="ms-swift's command")
    parser.add_argument("--steps", type=count, default=7, help="of a run; the first is not counted")
    parser.add_argument("--only", nargs=2, metavar=("TRAINER", "FOLDER"), help="one run; used by the script itself")
    arguments = parser.parse_args()
    if arguments.only:
        train_here(arguments.only[0], Path(arguments.only[1]), arguments.steps)
        return
    seconds: dict[str, list[float]] = {name: [] for name in ("ms-swift", *TRAINERS)}
    tokens: dict[str, list[float]] = {name: [] for name in seconds}
    for _ in range(arguments.rounds):
        with TemporaryDirectory() as made:
            folder = Path(made)
            save_ending_policy(folder / "policy")
            for name in seconds:
                command = [sys.executable, __file__, "--only", name, made, "--steps", str(arguments.steps)]
                if name == "ms-swift":
                    command = swift_command(arguments.swift, folder, arguments.steps)
                ended = subprocess.run(
                    command,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    check=False,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
                if ended.returncode:
                    sys.exit(f"{name} failed:\n{ended.stdout[-3000:]}")
                second, token = logged(folder / name)
                seconds[name].append(second)
                tokens[name].append(token)
    for name, values in seconds.items():
        ratio = median_ratio(values, seconds["here"])
        length = statistics.mean(tokens[name])
        print(f"{name:<10}{statistics.median(values):8.2f} s a step, x {ratio:.2f}, answers of {length:.0f} tokens")
    write_numbers(arguments, seconds=seconds, tokens=tokens)


if __name__ == "__main__":
    main()
