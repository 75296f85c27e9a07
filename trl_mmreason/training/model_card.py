"""Model card: TRL's, with base model, results and an example with an image.

TRL's own example sends a question without an image, and its card calls a base model that is a folder "None".
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from huggingface_hub import ModelCard

from ..data.folders import MINIATURE_RECORD, write_whole
from ..messages import text_of

logger = logging.getLogger(__name__)

CARD = "README.md"
PRINTED = "results.txt"
"""The table of results in the folder of an evaluation."""
EVALUATIONS = "_evaluation"
"""Evaluations before and after training, in the folder of a run. They hold questions and gold answers of a test set:
`Trainer` pushes no name that begins with "_"."""
COMPARED = f"{EVALUATIONS}/table.txt"
"""Their table."""
FACTS_FILE = "facts.json"
"""What the last training of a run did, in its folder; see `facts.py`."""
MINIATURE = "miniature/"
"""What names of the drawn tasks, and of the models built for them, begin with."""

_OWNED_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_NO_RESULTS = "No evaluation lies beside this model.\n\n"

_DRAWN_IMAGE = """\
from PIL import Image, ImageDraw

image = Image.new("RGB", (448, 224), "white")  # or Image.open("your_image.png")
ImageDraw.Draw(image).text((80, 60), "3 + 4", fill="black", font_size=96)
question = "What does the image show?"  # or one like those of training
"""
_MINIATURE_IMAGE = """\
from trl_mmreason.compat import torchvision_free  # from here on processors load without torchvision
from trl_mmreason.miniature.tasks import make_problem

problem = make_problem({category!r}, 0, split="new_pictures")
image, question = problem.image, problem.question
"""
_ANSWER = """
from transformers import pipeline  # needs torch, torchvision and pillow, too

answer = pipeline("image-text-to-text", model={model!r})
messages = [
{system}\
    {{"role": "user", "content": [{{"type": "image", "image": image}}, {{"type": "text", "text": question}}]}},
]
reply = answer(text=messages, max_new_tokens={tokens}, return_full_text=False)[0]["generated_text"]
print(reply)
"""
_SECOND_ANSWER = """
messages += [
    {{"role": "assistant", "content": [{{"type": "text", "text": reply}}]}},
    {{"role": "user", "content": [{{"type": "text", "text": {followup!r}}}]}},
]
print(answer(text=messages, max_new_tokens={tokens}, return_full_text=False)[0]["generated_text"])
"""
_SCORE = """question = "Add the two numbers in the image."

from trl_mmreason import ProcessRewardModel
from trl_mmreason.chain_of_step.template import Chain, Step, render_chain

chain = Chain([Step("Reading", "The numbers are 3 and 4.", "They are.")], answer="7")
row = {{"prompt": [{{"role": "user", "content": question}}], "images": [image], "completion": render_chain(chain)}}
print(ProcessRewardModel.from_pretrained({model!r}).score([row]))
"""


def edit_card(trainer: Any, dataset_name: str | None) -> None:
    """Add base model, data, results and example to TRL's card in the trainer's output folder."""
    from trl.trainer.utils import get_config_model_id  # here: it loads all trainers

    folder = Path(trainer.args.output_dir)
    card = ModelCard.load(folder / CARD)
    config = trainer.model.config
    name = get_config_model_id(config)
    base, miniature = base_model(name), getattr(config, MINIATURE_RECORD, None)
    card.data.base_model = base
    card.data.datasets = dataset_name if is_hub_id(dataset_name) else None
    card.data.pop("licence")  # TRL's placeholder
    scores = "process-reward-model" in trainer._tag_names
    if not scores:
        card.data.pipeline_tag = "image-text-to-text"
    head, _, rest = card.text.partition("This model is ")
    _, _, rest = rest.partition("It has been trained using")
    _, _, training = rest.partition("## Training procedure")
    category = None
    if miniature:
        drawn = str(dataset_name).startswith(MINIATURE)
        category = str(dataset_name).removeprefix(MINIATURE) if drawn else _drawn_category(_first_row(trainer))
    origin = describe_origin(name, base, miniature)
    card.text = (
        f"{head}This model is {origin}.\n"
        f"It has been trained{describe_data(trainer.train_dataset, dataset_name)}, with trl-mmreason on top of "
        "[TRL](https://github.com/huggingface/trl).\n\n"
        f"{describe_facts(folder)}"
        f"## Quick start\n\n```python\n{example(trainer, category, scores)}```\n\n"
        f"## Results\n\n## Training procedure{training}"
    )
    card.text = with_results(card.text, results_in(folder))
    card.save(folder / CARD)


def describe_facts(folder: Path) -> str:
    """Sentence on the updates and weights of the run whose facts lie in a folder; empty without any."""
    file = folder / FACTS_FILE
    if not file.is_file():
        return ""
    facts = json.loads(file.read_text(encoding="utf-8"))
    return (
        f"Its last training made {facts['updates'] - facts['skipped']} updates, which changed {facts['changed']} of "
        f"{facts['tensors']} trained tensors.\n\n"
    )


def base_model(name: str | None) -> str | None:
    """The base model's Hub id, read from its card or configuration if it is a folder; `None` if unknown."""
    if not name:
        return None
    folder, known = Path(name), [name]
    if folder.is_dir():
        card, config = folder / CARD, folder / "config.json"
        known = [ModelCard.load(card).data.base_model] if card.is_file() else []
        known += [json.loads(config.read_bytes()).get("_name_or_path")] if config.is_file() else []
    return next((each for each in known if isinstance(each, str) and is_hub_id(each)), None)


def warn_of_local_base(trainer: Any) -> None:
    """Before a push: warn if what is pushed has a base that nobody else can get, or whose name nobody can know."""
    from trl.trainer.utils import get_config_model_id  # as above

    name = get_config_model_id(trainer.model.config)
    if not name or is_hub_id(name):
        return
    if is_peft_model(trainer.accelerator.unwrap_model(trainer.model)):
        logger.warning(
            "The adapter that is pushed is for %s, a folder on this machine, so that nobody else can load it. Fix: "
            "train from a Hub id, or push the merged model (`save_merged`, docs/training.md).",
            name,
        )
    elif base_model(name) is None:
        logger.warning(
            "The card of the model that is pushed names no base model, as %s is a folder on this machine whose own "
            "card names none. Fix: add `base_model: NAME/MODEL` to the README.md in that folder.",
            name,
        )


def is_hub_id(name: str | None) -> bool:
    """Whether a name can be a Hub id: neither an existing path nor a drawn data set."""
    if not name or not _OWNED_HUB_ID.fullmatch(name):
        return False
    return not name.startswith(MINIATURE) and not Path(name).exists()


def describe_origin(name: str | None, base: str | None, miniature: str | None) -> str:
    """Name the initial model.

    Args:
        name: as the model's configuration has it, a Hub id or a folder; empty for a model that was made in memory.
        base: result of `base_model`.
        miniature: family/size if trl-mmreason's miniature built the model that all began with.
    """
    if base:
        return f"a fine-tuned version of [{base}](https://huggingface.co/{base})"
    if miniature:
        return (
            f"a fine-tuned miniature (`{miniature}`): a model of random weights that trl-mmreason built, and that "
            "knows nothing but what it was trained on"
        )
    if name:
        return f"a fine-tuned version of the checkpoint `{Path(name).name}`, whose own card names no base model"
    return "a fine-tuned version of a model that was passed in memory"


def describe_data(rows: Any, name: str | None) -> str:
    """Name the training data and, if known, the number of rows."""
    number = f" on {len(rows):,} rows" if hasattr(rows, "__len__") else ""
    if not name:
        return number
    if is_hub_id(name):
        name = f"[{name}](https://huggingface.co/datasets/{name})"
    else:
        name = f"`{name}`" if name.startswith(MINIATURE) else f"`{Path(name).name}`"
    return f"{number} of {name}" if number else f" on {name}"


def example(trainer: Any, category: str | None, scores: bool) -> str:
    """Python code that asks the model about an image.

    Args:
        category: of the drawn problems that a miniature was trained on; `None` for other models and other rows.
        scores: whether it scores chains of steps in the place of answering.
    """
    model = trainer.hub_model_id or trainer.args.output_dir
    image = _MINIATURE_IMAGE.format(category=category) if category else _DRAWN_IMAGE
    if scores:
        return image + _SCORE.format(model=model)
    tokens = getattr(trainer.args, "max_completion_length", None) or 512
    system_prompt = training_system_prompt(trainer)
    system = (
        f'    {{"role": "system", "content": [{{"type": "text", "text": {system_prompt!r}}}]}},\n'
        if system_prompt
        else ""
    )
    code = image + _ANSWER.format(model=model, system=system, tokens=tokens)
    followup = getattr(trainer, "followup", None)
    return code + _SECOND_ANSWER.format(followup=followup, tokens=tokens) if followup else code


def training_system_prompt(trainer: Any) -> str | None:
    """The system message in training: the trainer's own, or that of the first row."""
    own = getattr(trainer, "eval_system_prompt", None)
    if own:
        return own
    prompt = _first_row(trainer).get("prompt")
    first = prompt[0] if prompt and not isinstance(prompt, str) else {}
    return text_of(first["content"]) if first.get("role") == "system" else None


def _drawn_category(row: Mapping[str, Any]) -> str | None:
    """The kind of drawn problem of a row that was saved as a file: its id begins with it ("adding-2-train-000017")."""
    category = row.get("category")
    is_drawn = re.search(rf"(?:^|/){re.escape(str(category))}-[1-3]-\w+-\d{{6}}", str(row.get("id")))
    return str(category) if is_drawn else None


def _first_row(trainer: Any) -> dict[str, Any]:
    row: dict[str, Any] = next(iter(trainer.train_dataset or ()), {})
    return row


def results_in(folder: Path) -> dict[str, str]:
    """Read the tables of evaluations in a run's folder: title → metrics with 95 % intervals.

    Tables older than the end of training are those of an earlier run.
    """
    tables = {"Before and after training": folder / COMPARED}  # has `before` and `after` side by side
    tables |= {path.parent.name: path for path in sorted((folder / "evaluation").glob(f"*/{PRINTED}"))}
    trained = folder / "trainer_state.json"
    since = trained.stat().st_mtime_ns if trained.is_file() else 0
    return {
        title: path.read_text(encoding="utf-8")
        for title, path in tables.items()
        if path.is_file() and path.stat().st_mtime_ns >= since
    }


def with_results(card: str, results: Mapping[str, str]) -> str:
    """Add tables to a card; one with the same title is replaced."""
    head, _, rest = card.partition("## Results\n\n")
    section, _, training = rest.partition("## Training procedure")
    tables = dict(re.findall(r"### ([^\n]+)\n\n```text\n(.*?)\n```", section, re.DOTALL))
    tables |= {title: table.strip() for title, table in results.items()}
    shown = [f"### {title}\n\n```text\n{table}\n```\n\n" for title, table in tables.items()]
    return f"{head}## Results\n\n{''.join(shown) or _NO_RESULTS}## Training procedure{training}"


def add_results(folder: Path, title: str, table: str) -> None:
    """Add a table of results to the card of a saved model, if it has one."""
    path = folder / CARD
    if path.is_file():
        write_whole(path, with_results(path.read_text(encoding="utf-8"), {title: table}))
