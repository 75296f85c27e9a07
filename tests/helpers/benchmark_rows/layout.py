"""How the tests of benchmarks write down a data set's own layout, and save rows in it.

`Coloured` stands for an image of one colour. `saved` writes the rows as they are published: parquet with the images
inside, or JSON beside a folder of images.
"""

import base64
import json
import string
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from datasets import Dataset, Features, Image, List, Value
from support import png

TEXT, NUMBER, IMAGE, TEXTS = Value("string"), Value("float64"), Image(), List(Value("string"))
COLOURS = {"red": (255, 0, 0), "lime": (0, 255, 0), "blue": (0, 0, 255)}


class Coloured(NamedTuple):
    colour: str

    @property
    def png(self) -> bytes:
        if self.colour not in COLOURS:
            return b"no image"
        return png(self.colour, (8, 6))


RED, GREEN, BLUE = Coloured("red"), Coloured("lime"), Coloured("blue")


COLUMNS = {"id": "id", "question": "question", "answer": "answer", "category": "subject"}
"""Field of `Asked` → the column that holds it as it is, unless a layout has another one."""


@dataclass(kw_only=True)
class Asked:
    """An answer to a row that is right and one that is wrong, and what the row must become.

    What is `None` is what the row holds: its images in their order, and else the value of a column.
    """

    right: str
    wrong: str
    id: str | None = None
    question: str | None = None
    answer: str | list[str] | None = None
    images: list[str] | None = None
    options: Sequence[str] | None = None
    lists_options: bool = True
    category: str | None = None
    hint: str | None = None
    group: str | None = None
    tolerance: dict[str, Any] | None = None

    def of(self, row, columns):
        """The same, with what this row holds."""
        held = {name: row[column] for name, column in columns.items() if row.get(column) is not None}
        options = held.pop("options", ())
        parts = [part for value in row.values() for part in (value if isinstance(value, list) else [value])]
        images = [part.colour for part in parts if isinstance(part, Coloured)]
        held = {"hint": "", **{name: str(value) for name, value in held.items()}}
        held |= {"options": options, "images": images}
        return replace(self, **{name: value for name, value in held.items() if getattr(self, name) is None})

    @property
    def choices(self) -> dict[str, str] | None:
        return dict(zip(string.ascii_uppercase, self.options, strict=False)) or None

    @property
    def prompt(self) -> str:
        """The hint, the question and a line for each choice, without the instruction."""
        listed = [f"({letter}) {text}" for letter, text in (self.choices or {}).items()] if self.lists_options else []
        return "\n".join([*filter(None, [self.hint]), self.question, *listed])


@dataclass(kw_only=True)
class Layout:
    """Rows as published.

    Attributes:
        features: types of the parquet columns; None for JSON.
        asked: what each row must become, in turn where a row holds several questions; None for a row that belongs to
            another part of the benchmark.
        columns: field of `Asked` → column, where it is another one than in `COLUMNS`.
        needed: a column whose absence must be reported; `named` is how.
        image: the column of images that is broken in a test.
        keyed: the JSON is one object, its keys taken from this column.
    """

    features: dict[str, Any] | None
    rows: list[dict[str, Any]]
    asked: list[Asked | None]
    columns: dict[str, str] = field(default_factory=dict)
    needed: str
    named: str = ""
    image: str
    keyed: str | None = None

    @property
    def questions(self) -> list[Asked]:
        """What the rows become that belong to the benchmark."""
        columns = {**COLUMNS, **self.columns}
        rows = [row for row in self.rows for _ in range(len(self.asked) // len(self.rows))]
        return [asked.of(row, columns) for row, asked in zip(rows, self.asked, strict=True) if asked]


def saved(layout, folder, rows=None, without=None):
    """Write the rows of a layout, perhaps without a column; gives what `load_benchmark` takes as source."""
    rows = [{k: v for k, v in row.items() if k != without} for row in (layout.rows if rows is None else rows)]
    folder.mkdir(parents=True, exist_ok=True)
    if layout.features is None:
        plain = [{name: _filed(value, folder) for name, value in row.items()} for row in rows]
        data = {row[layout.keyed]: row for row in plain} if layout.keyed else plain
        file = folder / "rows.json"
        file.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
        return file
    features = Features({name: kind for name, kind in layout.features.items() if name != without})
    stored = [{name: _stored(row.get(name), kind) for name, kind in features.items()} for row in rows]
    file = folder / "rows.parquet"
    Dataset.from_list(stored, features=features).to_parquet(file)
    return file


def _filed(value, folder):
    """An image as the name of a file; images are in folders of their own."""
    if isinstance(value, list):
        return [_filed(one, folder) for one in value]
    if not isinstance(value, Coloured):
        return value
    (folder / "images").mkdir(exist_ok=True)
    (folder / "images" / f"{value.colour}.png").write_bytes(value.png)
    return f"images/{value.colour}.png"


def _stored(value, kind):
    """A value of a parquet column; of an image in a column of text it is base64."""
    if isinstance(value, list):
        return [_stored(one, getattr(kind, "feature", None)) for one in value]
    if not isinstance(value, Coloured):
        return value
    return base64.b64encode(value.png).decode() if kind == TEXT else {"bytes": value.png, "path": None}


def row(**columns):
    return columns


def texts(names):
    """Columns of text with these names, a row of words."""
    return dict.fromkeys(names.split(), TEXT)


def numbered(count):
    return {f"image_{number}": IMAGE for number in range(1, count + 1)}
