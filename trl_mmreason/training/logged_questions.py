"""Log the questions of TRL's tables of completions, with ids and images, which the tables lack.

    output_dir/completions/completions_00020.parquet    TRL's: step, prompt, completion, rewards, extra columns
    output_dir/_questions/questions_00020.parquet       ours, a line for each of its lines, in the same order
    output_dir/_questions/<digest>.png                  every image once, shrunk as the report shows it

A folder whose name begins with "_" stays out of what `push_to_hub` uploads: the images are the data set's.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from accelerate.utils import gather_object
from PIL import Image

from ..compat.replaced import replaced
from ..data.folders import atomic_path
from ..data.images import png_of
from ..messages import images_inside, question_text

_FOLDER = "_questions"
_SCHEMA = pa.schema(
    [*((name, pa.string()) for name in ("question", "id", "category", "answer")), ("pictures", pa.list_(pa.string()))]
)


class LoggedQuestion(NamedTuple):
    """The question of one logged completion; unknown fields are "".

    Attributes:
        question: the prompt's text without the system message.
        id, category: of the row.
        answer: the gold answer.
        images: files, in order.
    """

    question: str
    id: str
    category: str
    answer: str
    images: list[Path]


def about_question(row: Mapping[str, Any], hidden: Set[str] = frozenset()) -> dict[str, str]:
    """Collect a row's logged fields, without its images."""
    seen = {name: value for name, value in row.items() if name not in hidden and value is not None}
    answer = seen.get("answer", "")
    return {
        "question": question_text(row.get("prompt", "")),
        "id": str(seen.get("id", "")),
        "category": str(seen.get("category", "")),
        "answer": " or ".join(map(str, answer)) if isinstance(answer, list | tuple) else str(answer),
    }


def gather_without_images(values: list[Any]) -> list[Any]:
    """Gather values of all processes; conversations without their images, which no table of completions holds."""
    from trl.trainer.utils import strip_images_from_messages  # here: TRL takes seconds to load

    return gather_object([strip_images_from_messages(value) if _is_conversation(value) else value for value in values])


def prompts_alike(prompts: Sequence[Any]) -> list[Any]:
    """Convert string contents to parts if any content is parts, as a parquet column cannot mix them.

    Args:
        prompts: strings or messages; TRL makes parts of the contents where a process has images, and only there.
    """
    messages = [message for prompt in prompts if not isinstance(prompt, str) for message in prompt]
    if all(isinstance(message["content"], str) for message in messages):
        return list(prompts)
    return [prompt if isinstance(prompt, str) else [_in_parts(message) for message in prompt] for prompt in prompts]


def write_questions(
    output_dir: str | Path, step: int, questions: Sequence[Mapping[str, str]], images: Sequence[Sequence[Image.Image]]
) -> None:
    """Write the questions of the completions logged at a step.

    Args:
        questions: results of `about_question`, in the order of the completions.
        images: images of each question; none at all if images are not to be kept.
    """
    folder = Path(output_dir) / _FOLDER
    folder.mkdir(exist_ok=True)
    names = [[_save(image, folder) for image in of_question] for of_question in images] or [[] for _ in questions]
    rows = [{**question, "pictures": own} for question, own in zip(questions, names, strict=True)]
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), _table(output_dir, step))


def read_questions(output_dir: str | Path, step: int) -> list[LoggedQuestion]:
    """Read the file of `write_questions`; empty if there is none."""
    file = _table(output_dir, step)
    if not file.exists():
        return []
    rows = pq.read_table(file).to_pylist()
    return [LoggedQuestion(images=[file.parent / name for name in row.pop("pictures")], **row) for row in rows]


def logged_by_a_run(output_dir: str | Path) -> Iterator[Path]:
    """TRL's tables of completions and ours of their questions, of which a shorter run would leave the last ones."""
    yield from Path(output_dir).glob("completions/completions_*.parquet")
    yield from Path(output_dir).glob(f"{_FOLDER}/questions_*.parquet")


def _copied(columns: Any) -> Any:
    """A copy of a column of TRL's logs, or of several by name."""
    copied = copy(columns)
    if isinstance(copied, dict):
        copied.update({name: copy(column) for name, column in copied.items()})
    return copied


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(message, dict) and "role" in message for message in value)


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _table(output_dir: str | Path, step: int) -> Path:
    return Path(output_dir) / _FOLDER / f"questions_{step:05d}.parquet"


def _save(image: Image.Image, folder: Path) -> str:
    """Save an image unless its file exists; return the file's name."""
    content = f"{image.mode} {image.size}".encode() + image.tobytes()
    name = f"{hashlib.sha256(content).hexdigest()[:24]}.png"
    if not (folder / name).exists():
        with atomic_path(folder / name) as unfinished:
            unfinished.write_bytes(png_of(image))
    return name


class LoggedQuestionsMixin:
    """For a `GRPOTrainer`: writes the questions of the completions in TRL's tables."""

    args: Any
    state: Any
    model: Any
    accelerator: Any
    log_completions: bool
    hidden_columns: ClassVar[frozenset[str]] = frozenset()
    _logs: Any
    _questions: deque[dict[str, str]]

    def _keep_questions(self, rows: list[dict[str, Any]]) -> None:
        """Keep the questions of the completions that TRL keeps for its table, one entry for each row."""
        self._questions.extend(gather_object([about_question(row, self.hidden_columns) for row in rows]))
        if self.args.log_multimodal:
            images = [row.get("images") or images_inside(row.get("prompt")) for row in rows]
            # without links, which transformers fetches
            shown = [[image for image in own if isinstance(image, Image.Image)] for own in images]
            self._logs["images"].extend(gather_object(shown))

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as TRL does; what is logged of it stays apart from what training logs next."""
        apart = {name: _copied(columns) for name, columns in self._logs.items()}
        with replaced(self, _logs=apart, _questions=copy(self._questions)):
            return super().evaluation_loop(*args, **kwargs)  # type: ignore[misc]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as TRL does, and write the questions of the completions in its table.

        An evaluation writes no table: it would take the place of training's of that step. Nor does a run that was
        resumed amid a rollout before its next one, as it knows nothing of those completions.
        """
        logs_some = self.log_completions and self.model.training and len(self._logs["prompt"]) > 0
        writes = logs_some and self.accelerator.is_main_process
        if writes:
            for column in ("prompt", "completion"):
                logged = self._logs[column]
                self._logs[column] = deque(prompts_alike(logged), maxlen=logged.maxlen)
        with replaced(self, log_completions=logs_some):
            super().log(logs, start_time)  # type: ignore[misc]
        if writes:
            write_questions(self.args.output_dir, self.state.global_step, self._questions, self._logs["images"])
