"""What the supervised start of a miniature model teaches, as rows: answers in a method's format, captions, verdicts."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset, Features, Image, List
from PIL import Image as PILImage

from ..data.row_values import stored_image
from ..data.rows import MESSAGES
from .captions import caption
from .judging import verdict
from .solutions import ERRORS, Solution, attempt, solve, worked_steps
from .tasks import Problem


@dataclass(frozen=True)
class Lessons:
    """Content of a cold start.

    Attributes:
        write: how a solution is written.
        answer_tokens: token limit of an answer when accuracy is measured.
        or_write: another way, in which every second solution is written; `None` for one way alone.
        followup: user message before a second answer; `None` for one answer alone.
        write_again: how the second answer is written; `None` for the way of the first.
        again_every: one problem of so many is answered a second time.
        in_steps: whether the words of solutions in steps are to be known, for what comes after.
        describe: what the user says to have the image described; `None` for answers alone.
        judge: what the user says to have a response judged, of its question and itself; `None` for answers alone.
        answers_every: one problem of so many is answered, so that what else is taught gets ahead of the answers.
    """

    write: Callable[[Solution], str]
    answer_tokens: int
    or_write: Callable[[Solution], str] | None = None
    followup: str | None = None
    write_again: Callable[[Solution], str] | None = None
    again_every: int = 4
    in_steps: bool = False
    describe: str | None = None
    judge: Callable[[str, str], str] | None = None
    answers_every: int = 1

    @property
    def vocabulary(self) -> dict[str, bool]:
        """Arguments of `build_model`, so that the tokenizer knows the words of these lessons."""
        return {"in_steps": self.in_steps, "judging": self.judge is not None}

    @property
    def name(self) -> str:
        """A unique name of these lessons."""
        name = f"{self.write.__name__}-in-steps" if self.in_steps else self.write.__name__
        if self.or_write:
            name = f"{name}-or-{self.or_write.__name__}"
        if self.describe:
            name = f"{name}-described-{_digest(self.describe)}"
        if self.judge:
            name = f"{name}-judged-{_digest(self.judge('', ''))}"
        if self.answers_every > 1:
            name = f"{name}-every-{self.answers_every}"
        if self.write_again:
            name = f"{name}-then-{self.write_again.__name__}"
        if self.again_every != 4:
            name = f"{name}-again-{self.again_every}"
        return f"{name}-{_digest(self.followup)}" if self.followup else name


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode()).hexdigest()[:6]


def demonstrations(problems: Sequence[Problem], lessons: Lessons, *, seed: int = 0) -> Dataset:
    """Make rows of supervised training: problems answered, answered again, described or judged, and sums in words.

    Only the last answer of a row is learnt (`completion`), so the wrong first answers are read and never imitated.
    The sums teach the addition table as text: a pair of digits that is held out as an image can still be added.

    Args:
        problems: each is described, if the lessons have captions, and every one, or every so many, answered. If they
            have a second answer, one of so many is in another row answered again, after a first answer that is right or
            wrong. If they have verdicts, a response to every second is judged, and beside each of the others one to a
            sum; otherwise there is a sum beside every fourth. "Every fourth" is of each category: problems go round
            the categories, so that every fourth of all may be of one.
        lessons: how answers are written, and what the user says between two, or to have something described or judged.

    Returns:
        Shuffled rows with prompt (messages), completion (one message) and images (one, or none for a sum).
    """
    rng = random.Random(seed)
    rows: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for serial, problem in enumerate(problems):
        number = seen[problem.category]
        seen[problem.category] += 1
        images = [stored_image(problem.image)]
        if lessons.describe is not None:
            rows.append(_row([_said(lessons.describe)], caption(problem), images))
        answered, left = divmod(number, lessons.answers_every)
        write = lessons.or_write if lessons.or_write and answered % 2 else lessons.write
        right = write(solve(problem))
        if left == 0:
            rows.append(_row(problem.prompt, right, images))
        if lessons.followup is not None and number % lessons.again_every == 0:
            first = lessons.write(solve(problem, error=rng.choice([None, *ERRORS])))
            checked = [{"role": "assistant", "content": first}, _said(lessons.followup)]
            again = (lessons.write_again or lessons.write)(solve(problem))
            rows.append(_row([*problem.prompt, *checked], again, images))
        if lessons.judge is not None:
            added, other = _sum_in_words(rng, serial), _sum_in_words(rng, serial)
            judged, other, shown = (added, other, []) if number % 2 else (problem, rng.choice(problems), images)
            response = rng.choice(_responses(judged, other, lessons))
            judge_prompt = lessons.judge(judged.prompt[0]["content"], response)
            rows.append(_row([_said(judge_prompt)], verdict(judged, response), shown))
        elif number % 4 == 0:
            added = _sum_in_words(rng, serial)
            rows.append(_row(added.prompt, lessons.write(solve(added)), []))
    rng.shuffle(rows)
    features = Features({"prompt": MESSAGES, "completion": MESSAGES, "images": List(Image())})
    return Dataset.from_list(rows, features=features)


def _said(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}


def _row(prompt: list[dict[str, str]], completion: str, images: list[Any]) -> dict[str, Any]:
    return {"prompt": prompt, "completion": [{"role": "assistant", "content": completion}], "images": images}


def _responses(problem: Problem, other: Problem, lessons: Lessons) -> list[str]:
    """Responses to judge: equally many right and mistaken ones, another problem's, and an empty one.

    Among these alone the digits of a response are mostly right, and a judge would learn to copy them instead of looking
    at the image. So there is the solution of another problem, and an empty response, too.
    """
    mistaken = [lessons.write(solve(problem, error=error)) for error in ERRORS]
    right = lessons.write(solve(problem))
    return [*[right] * len(mistaken), *mistaken, lessons.write(solve(other)), ""]


def _sum_in_words(rng: random.Random, serial: int) -> Problem:
    """A sum whose digits are in its question; `serial` distinguishes equal sums with different mistakes."""
    facts = {"first": rng.randrange(10), "second": rng.randrange(10)}
    added = attempt("adding", 1, facts, "")
    text = added.lead.removesuffix("=")
    return Problem(
        id=f"{text}-{serial}",
        category="adding",
        level=1,
        question=f"What is {text}?",
        image=PILImage.new("RGB", (1, 1)),  # never shown
        answer=added.stated,
        choices=None,
        facts=facts,
        asked="",
        steps=worked_steps("adding", "", added, None)[len(facts) :],
        seed=serial,
    )
