"""docs/models.md: each family with each kind of trainer is exact, or refused in one sentence; the page says which."""

import re
from pathlib import Path

import pytest
import torch
import transformers
from all_families import FAMILIES, label
from datasets import Dataset
from every_trainer import BY_OUTCOME, DPO, make, rows_of
from exactness import Plain, answers_differ, rollout_difference, supervised_difference
from further_families import saved
from packaging.version import Version
from peft import LoraConfig, PeftModel
from support import FAMILY_NAMES, SUPERVISED_RUN, changed_weights, drawn_rows, weights_of
from transformers import AutoConfig, PaliGemmaProcessor

from trl_mmreason.data.images import images_of
from trl_mmreason.generation.model_loading import sees_images
from trl_mmreason.messages import question_text
from trl_mmreason.training.facts import NothingTrained
from trl_mmreason.training.sft import CompletionSFTConfig, CompletionSFTTrainer

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
EVERYDAY = {"idefics3", "qwen3_5", "qwen3_vl_moe", *FAMILY_NAMES}  # tiles, hybrid attention, experts; the promised
COLUMNS = ["rollouts", "rollouts, LoRA", "SFT", "DPO", "off-policy", "evaluation"]
TRAINERS = {"SFT": "CompletionSFTTrainer", "DPO": DPO, "off-policy": "OffPolicyRewardTrainer"}
TOLERANCE = 2e-4  # nats
NO_AUXILIARY_LOSS = {"router_aux_loss_coef": 0.0}
SEEN: dict[str, dict[str, str]] = {}
LARGEST: dict[str, float] = {}


class LearnsAnything(CompletionSFTTrainer):
    @staticmethod
    def problem_of(completion):
        return None


class Family:
    """A saved checkpoint, the rows that its trainers get, and what they did with them."""

    def __init__(self, name, folder):
        self.folder = saved(FAMILIES[name], folder / "model")
        self.config = AutoConfig.from_pretrained(self.folder)
        self.plain, self.largest, self.work, self.runs = Plain(self.folder, self.config), 0.0, folder, 0
        self.sees = sees_images(self.config)

    def __str__(self):
        return label(self.config)

    def new_folder(self):
        self.runs += 1
        return self.work / str(self.runs)

    def rows(self, trainer):
        rows = rows_of(trainer).to_list()
        return Dataset.from_list(rows if self.sees else [{**row, "images": []} for row in rows])

    def compared(self, difference):
        assert difference < TOLERANCE, f"{difference:.2g} nats"
        self.largest = max(self.largest, difference)

    def rollouts(self, settings, adapter=None):
        trainer = make(
            "AdaPOTrainer", self.folder, self.new_folder(), adapter=adapter, rows=self.rows("AdaPOTrainer"), **settings
        )
        self.compared(rollout_difference(trainer, self.plain))
        self.trained(trainer, adapter)

    def supervised(self, column, settings):
        name = TRAINERS[column]
        if column == "SFT":
            rows = Dataset.from_list([{**row, "completion": f"It is {len(row['id'])}."} for row in self.rows("")])
            args = CompletionSFTConfig(str(self.new_folder()), **{**SUPERVISED_RUN, "warmup_steps": 0, **settings})
            trainer = LearnsAnything(self.folder, args=args, train_dataset=rows)
        else:
            own = BY_OUTCOME if name == DPO else {}
            if not self.sees and name == "OffPolicyRewardTrainer":
                own = {"trainable_parts": ["language"]}
            trainer = make(name, self.folder, self.new_folder(), rows=self.rows(name), **own, **settings)
        asked = self.rows(name) if name == DPO else trainer.train_dataset
        rows = [dict(asked[number]) for number in range(4)]
        if name == DPO:
            for number, row in enumerate(rows):
                row["prompt"] = [{"role": "user", "content": question_text(row["prompt"])}]
                row["chosen"] = [{"role": "assistant", "content": f"It is {number}."}]
                row["rejected"] = [{"role": "assistant", "content": "No" + " so" * number}]
        for row in rows:
            row["images"] = images_of(row)
        if self.sees or name != DPO:  # of text alone, TRL's rows of DPO are tokens already
            self.compared(supervised_difference(trainer, self.plain, rows))
        self.trained(trainer)

    def trained(self, trainer, adapter=None):
        """It trains, and what is saved is what was trained."""
        before = weights_of(trainer.model)
        trainer.train()
        assert changed_weights(trainer.model, before)
        folder = self.new_folder()
        trainer.save_model(str(folder))
        model = self.plain.loaded(self.folder if adapter else folder)
        model = PeftModel.from_pretrained(model, folder) if adapter else model
        loaded = dict(model.named_parameters())
        for name, weight in trainer.accelerator.unwrap_model(trainer.model).named_parameters():
            assert torch.equal(loaded[name], weight), name

    def evaluated(self):
        """The size of batches whose answers are the plain model's, of rows that the processor takes."""
        rows = [dict(row, images=row["images"] if self.sees else []) for row in drawn_rows(6)]
        if isinstance(self.plain.processor, PaliGemmaProcessor):  # no text without an image
            rows = [row for row in rows if row["images"]]
        (size, *_) = (size for size in (len(rows), 1) if not answers_differ(self.folder, self.plain, rows, size))
        return None if size > 1 else "exact with a batch size of 1"


def tried(work, settings):
    """ "exact", or the sentence that refuses it; with the setting that a sentence names, if that helps."""
    try:
        found = work(settings)
    except NothingTrained:
        raise
    except ValueError as error:
        sentence = " ".join(str(error).split())
        if "router_aux_loss_coef=0.0" in sentence and not settings:
            again = tried(work, NO_AUXILIARY_LOSS)
            return "exact with `router_aux_loss_coef=0.0`" if again == "exact" else again
        refused = re.match(r"\w+: (.*Fix: .*)", sentence)
        assert refused, sentence
        return re.sub(r"^row \d+|by [\d.e-]+ nats", lambda measured: re.sub(r"[\d.e-]+", "…", measured[0]), refused[1])
    return found or "exact"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERYDAY else pytest.mark.full) for name in FAMILIES]
)
def test_a_family_is_exact_or_refused_in_one_sentence(name, tmp_path):
    if name == "idefics3" and Version(transformers.__version__) < Version("5.23"):
        pytest.skip("its image processor needs torchvision then")
    family = Family(name, tmp_path)
    adapter = LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"])
    work = {
        "rollouts": family.rollouts,
        "rollouts, LoRA": lambda settings: family.rollouts(settings, adapter),
        **{column: lambda settings, column=column: family.supervised(column, settings) for column in TRAINERS},
    }
    cells = {column: tried(work[column], {}) for column in work}
    cells["evaluation"] = tried(lambda settings: family.evaluated(), {})
    SEEN[str(family)], LARGEST[str(family)] = cells, family.largest


@pytest.mark.full
@pytest.mark.skipif(
    Version(transformers.__version__).minor != 23, reason="the page is of the version in constraints.txt"
)
def test_the_page_says_what_was_seen():
    """Largest differences depend on the processor: they may be ten times those of the page."""
    assert len(SEEN) == len(FAMILIES), "a family failed, was not run, or has the name of another"
    lines = table()
    page = PAGE.read_text()
    stated = {
        line.split(" | ")[0][2:]: line.rstrip(" |").split(" | ")[-1] for line in page.splitlines() if "| `" in line
    }
    expected = "\n".join(f"{line} {stated.get(name, LARGEST[name])} |" if name else line for name, line in lines)
    measured = {name: f"{largest:.0e}" for name, largest in LARGEST.items()}
    assert expected in page, f"docs/models.md has another table; this one was seen:\n{expected}\n{measured}"
    for name, largest in LARGEST.items():
        assert largest <= 10 * float(stated[name].replace("–", "0")), f"{name}: {largest:.0e}"


def table():
    """Lines of the table without the last column, each with its family; and below the sentences that refuse."""
    lines = [
        ("", f"| family | {' | '.join(COLUMNS)} | largest difference, nats |"),
        ("", "|---" * (len(COLUMNS) + 2) + "|"),
    ]
    notes: list[str] = []
    for name, seen in sorted(SEEN.items()):
        cells = []
        for column in COLUMNS:
            verdict = seen[column]
            if not verdict.startswith("exact") and verdict not in notes:
                notes.append(verdict)
            cells.append(verdict if verdict.startswith("exact") else f"refused [{notes.index(verdict) + 1}]")
        lines.append((name, f"| {name} | {' | '.join(cells)} |"))
    return [*lines, ("", ""), *(("", f"{number}. {note}") for number, note in enumerate(notes, 1))]
