"""What is said of usable rows that a model can hardly learn from: a warning for each kind, with the number of rows."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from datasets import Dataset

from ..grading.extraction import read_gold

logger = logging.getLogger(__name__)
_CONTEXTS = {"context", "hint", "passage", "table"}
_LONGEST_LETTER = 20  # characters of an answer that is a letter: \boxed{\text{(A)}}


def warn_of_context(left_out: Sequence[str], source_name: str) -> None:
    """Warn of columns that are left out and that questions rest on in ScienceQA, TabMWP or reading comprehension."""
    if contexts := [column for column in left_out if column.rsplit(".", 1)[-1].casefold() in _CONTEXTS]:
        logger.warning(
            "%s: left out is what a question may need, in %s. Fix: write it into the prompt.",
            source_name,
            contexts,
        )


def warn_of_unlisted_choices(dataset: Dataset, source_name: str) -> None:
    """Warn once of questions whose prompt has neither all letters of their choices nor all texts."""
    if dataset.data["choices"].null_count == len(dataset.data):
        return
    rows = dataset.select_columns(["prompt", "choices", "id"]).iter(1000)
    cells = (cell for batch in rows for cell in zip(batch["prompt"], batch["choices"], batch["id"], strict=True))
    unlisted = [id_ for prompt, choices, id_ in cells if choices and not _lists_choices(prompt, choices)]
    if unlisted:
        logger.warning(
            "%s: %d of %d prompts, the first that of %r, do not list the `choices` of their rows, and nothing else "
            "does. Fix: write letters and texts into the prompt, unless they are in the image.",
            source_name,
            len(unlisted),
            len(dataset),
            unlisted[0],
        )


def warn_of_unlisted_letters(dataset: Dataset, source_name: str) -> None:
    """Warn once of answers that are the letter of a choice, of which neither the row nor its prompt says anything."""
    cells = zip(dataset["answer"][:], dataset["choices"][:], strict=True)
    letters = {row: _lone_letter(answer) for row, (answer, choices) in enumerate(cells) if not choices}
    rows = [row for row, letter in letters.items() if letter]
    prompts = dataset.select(rows)["prompt"][:] if rows else []
    unlisted = [row for row, prompt in zip(rows, prompts, strict=True) if not _has_word(prompt, str(letters[row]))]
    if unlisted:
        logger.warning(
            "%s: %d of %d answers, the first that of %r, are the letter of a choice, and neither their prompts nor "
            "`choices` have it, so that it can only be guessed. Fix: write letters and texts of the choices, which may "
            "be in columns that are left out, into the prompt, unless they are in the image.",
            source_name,
            len(unlisted),
            len(dataset),
            dataset["id"][unlisted[0]],
        )


def _lone_letter(answer: str | Sequence[str] | None) -> str | None:
    """The letter that an answer consists of."""
    text = answer if isinstance(answer, str) else (answer or [""])[0]
    match = re.fullmatch(r"\(?([A-J])\)?\.?", read_gold(text).strip()) if len(text) < _LONGEST_LETTER else None
    return match[1] if match else None


def _has_word(prompt: Sequence[Mapping[str, str]], word: str) -> bool:
    return any(re.search(rf"\b{word}\b", message["content"]) for message in prompt)


def warn_of_several_answers(dataset: Dataset, source_name: str) -> None:
    """Warn once of conversations with several answers, of which only the last one is a completion."""
    several = sum(any(one["role"] == "assistant" for one in prompt) for prompt in dataset["prompt"])
    if several:
        logger.warning(
            "%s: %d of %d conversations have several answers. The last one is the completion; the earlier ones are "
            "part of the prompt, and nothing is learned of them.",
            source_name,
            several,
            len(dataset),
        )


def _lists_choices(prompt: Sequence[Mapping[str, str]], choices: Mapping[str, str]) -> bool:
    text = " ".join(message["content"] for message in prompt)
    letters = set(re.findall(r"\b[A-Z]\b", text))
    return letters >= choices.keys() or all(one.casefold() in text.casefold() for one in choices.values())
