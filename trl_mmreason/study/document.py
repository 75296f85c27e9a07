"""The study's results in its documentation: one table of all claims, and the arms and curves of each part.

    python -m trl_mmreason.study.document docs/study.md

rewrites what stands between two marks in that file, from the files in a folder of its name: PART.json (the
`claims.json` of a part), PART.png (its `curves.png`) and notes.yaml (part → claim → what was looked at and tried, which
every claim that does not hold or is undecided needs).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..evaluation.metrics import Estimate
from ..rows import DataError
from .report import form_of

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HOLDS = "holds"


def write_document(path: str | Path) -> None:
    """Put the results into the file.

    Raises:
        DataError: the file has not both marks, or a claim that does not hold has no note.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise DataError(f"{path}: expected {BEGIN!r} once, and behind it {END!r} once.")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{results_of(path.with_suffix(''))}\n{END}{after}", encoding="utf-8")


def results_of(folder: Path) -> str:
    """The results as Markdown.

    Raises:
        DataError: a claim that does not hold, or is undecided, has no note; or a note is about no claim.
    """
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    notes = yaml.safe_load((folder / "notes.yaml").read_text(encoding="utf-8")) or {}
    _check_notes(parts, notes)
    sections = [claims_table(parts, notes)]
    for part in parts:
        name = part["part"]
        pictures = [f"![{name}]({folder.name}/{file.name})" for file in sorted(folder.glob(f"{name}*.png"))]
        seeds = ", ".join(map(str, part["seeds"]))
        sections += [f"### {name}, seeds {seeds}", f"```text\n{part['arms']}\n```", *pictures]
    return "\n\n".join(sections)


def claims_table(parts: Sequence[Mapping[str, Any]], notes: Mapping[str, Mapping[str, str]]) -> str:
    """A line a claim: where it stands, the paper's numbers, ours, and the verdict.

    Args:
        parts: what `claims_as_json` gave for each.
        notes: part → claim → what was looked at and tried.
    """
    lines = ["| claim | place | paper | ours: difference [95 % interval], by seed | verdict |", "|---|---|---|---|---|"]
    for part in parts:
        lines.append(f"| **{part['part']}** | | | | |")
        for claim in part["claims"]:
            note = notes.get(part["part"], {}).get(claim["claim"])
            verdict = claim["verdict"] if note is None else f"{claim['verdict']}: {note}"
            lines.append(f"| {claim['claim']} | {claim['place']} | {claim['paper']} | {_ours(claim)} | {verdict} |")
    return "\n".join(lines)


def _ours(claim: Mapping[str, Any]) -> str:
    form = form_of(claim["unit"])
    difference = form.with_interval(Estimate(claim["value"], (claim["low"], claim["high"])), signed=True)
    seeds = ", ".join(form.text(value, signed=True) for value in claim["by_seed"])
    said = f"{difference} ({seeds})"
    if sorted(weight for weight, _, _ in claim["contrast"]) == [-1, 1]:
        reached = [form.text(claim["values"][f"{arm} {metric}"]) for _, arm, metric in sorted(claim["contrast"])[::-1]]
        said = f"{reached[0]} against {reached[1]}: {said}"
    return said


def _check_notes(parts: Sequence[Mapping[str, Any]], notes: Mapping[str, Mapping[str, str]]) -> None:
    verdicts = {(part["part"], claim["claim"]): claim["verdict"] for part in parts for claim in part["claims"]}
    needed = {claim for claim, verdict in verdicts.items() if verdict != HOLDS}
    noted = {(part, claim) for part, of_part in notes.items() for claim in of_part or {}}
    if needed - noted or noted - set(verdicts):
        raise DataError(
            f"notes.yaml: expected a note on every claim that does not hold or is undecided. Without one: "
            f"{sorted(needed - noted)}; notes on no claim: {sorted(noted - set(verdicts))}."
        )


if __name__ == "__main__":
    write_document(sys.argv[1])
