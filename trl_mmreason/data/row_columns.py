"""Which of a source's columns are ours: customary names, and fields inside columns, "column.field"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from .row_values import naming_column
from .rows import DataError
from .video import VIDEO_NAMES

# The names that data sets customarily use. Our own name wins over its synonyms; two synonyms are ambiguous.
SYNONYMS = {
    "prompt": ("question", "problem", "query"),
    "images": ("image", "image_path", "file_name", "file_names", "image_urls"),
    "answer": ("answers", "solution", "ground_truth", "reward_model.ground_truth"),
    "choices": ("options",),
    "id": ("question_id",),
    "category": ("subject",),
    "completion": ("response", "output", "solution"),
    "rejected": ("rejected_response", "rejected_messages"),
    "steps": ("steps_with_score", "response"),
}
# Columns of whole conversations, as others name them: read where nothing else is the prompt, and their end
# is the answer, the completion or the labelled steps where nothing else is.
CONVERSATIONS = ("messages", "conversations", "conversation", "texts")


class SourceColumns(NamedTuple):
    """The columns of a source.

    Attributes:
        outer: their names.
        fields: "column.field" for the fields of those that hold records.
    """

    outer: list[str]
    fields: list[str]

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> SourceColumns:
        """Those of a table.

        Args:
            columns: name → feature, or a mapping with the fields that its values have.
        """
        inner = [f"{column}.{field}" for column, one in columns.items() if isinstance(one, Mapping) for field in one]
        return cls(list(columns), [name for name in inner if name not in columns])

    @property
    def innermost(self) -> list[str]:
        """The columns, those that hold records as their fields: what `columns` would name."""
        return [name for column in self.outer for name in self._fields_of(column) or [column]]

    def _fields_of(self, column: str) -> list[str]:
        return [field for field in self.fields if field.startswith(f"{column}.")]

    def __contains__(self, column: object) -> bool:
        return column in self.outer or column in self.fields

    def named(self, name: str) -> list[str]:
        """Those of a customary name: itself, or else those that differ from it in upper and lower case alone."""
        if name in self:
            return [name]
        return [column for column in (*self.outer, *self.fields) if column.casefold() == name.casefold()]


def find_columns(
    present: SourceColumns,
    columns: Mapping[str, str | None],
    source_name: str,
    names: Sequence[str],
    *,
    required: Sequence[str] = ("answer",),
    ends: str = "answer",
) -> dict[str, str]:
    """Map our column names to the source's, for the columns that the source has.

    Args:
        columns: our name → the source's, as the caller chose; None for none.
        source_name: names the source in errors.
        required: of these those, besides `prompt`, that every source has.
        ends: the one that the end of a conversation fills.

    Raises:
        DataError: a required column is missing, two columns could be meant, or `columns` names an unknown one.
    """
    if unknown := sorted(columns.keys() - set(names)):
        videos = "; video and videos are columns with video_frames=… alone" if {*unknown} <= {*VIDEO_NAMES} else ""
        raise DataError(
            f"columns has the keys {unknown}; expected our names {names} → names of the source's columns{videos}"
        )
    if "prompt" in columns and columns["prompt"] is None:
        raise DataError(f"{source_name}: columns has no column for prompt (None), which every row needs: name one")
    source_columns: dict[str, str] = {}
    candidates: list[str | None]
    for name in names:
        if name in columns:
            candidates = [] if columns[name] is None else [columns[name]]
        else:
            synonyms = (column for each in SYNONYMS.get(name, ()) for column in present.named(each))
            candidates = [*(present.named(name) or synonyms)]
            if name == "prompt" and not candidates:
                candidates = [each for each in CONVERSATIONS if each in present]
            if name == ends and not candidates and source_columns.get("prompt") in CONVERSATIONS:
                candidates = [source_columns["prompt"]]
        if len(candidates) > 1:
            raise DataError(
                f"{source_name}: {name} could be any of {candidates}; say which with columns: {naming_column(name)}"
            )
        if candidates and candidates[0] not in present:
            raise DataError(f"{source_name} has no column {candidates[0]!r} for {name}; it has {present.innermost}")
        if not candidates and name in ("prompt", *required) and name not in columns:
            looked_for = [name, *SYNONYMS.get(name, ()), *(CONVERSATIONS if name == "prompt" else ())]
            without = "; or null (None) there if there is none" if name == "answer" else ""
            raise DataError(
                f"{source_name} has no column for {name}: looked for {looked_for}, found "
                f"{present.innermost}; name it with columns: {naming_column(name)}{without}"
            )
        if candidates:
            source_columns[name] = str(candidates[0])
    return source_columns


def left_out_columns(present: SourceColumns, used: Iterable[str]) -> list[str]:
    """The columns that are not used; of one of which only fields are, its other fields."""
    used = set(used)
    left_out = []
    for column in present.outer:
        fields = present._fields_of(column)
        parts = fields if used & set(fields) else [column]
        left_out += [] if column in used else [part for part in parts if part not in used]
    return left_out
