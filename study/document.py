"""Write the study's results into its page: a table of all claims, and each part's arms and curves.

    python -m study.document docs/study.md

rewrites what stands between two marks in that file, from the files in a folder of its name: NAME.json (the
`claims.json` of a study), NAME.png and NAME-figures.png (its `curves.png` and `figures.png`), and notes.yaml (name →
claim → what was looked at and tried, which every claim that does not hold or is undecided needs). A part without
NAME.png is an earlier run: its claims are listed last, its arms are not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trl_mmreason.data.folders import write_whole
from trl_mmreason.data.rows import DataError
from trl_mmreason.evaluation.metrics import Estimate, number_from_json

from .report import form_of

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HOLDS = "holds"


def write_document(path: str | Path) -> None:
    """Write the results into the file.

    Raises:
        DataError: the file has not both marks, or a claim that does not hold has no note.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise DataError(f"{path}: expected {BEGIN!r} once, and behind it {END!r} once.")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    write_whole(path, f"{before}{BEGIN}\n{results_of(path.with_suffix(''))}\n{END}{after}")


def results_of(folder: Path) -> str:
    """The results as Markdown.

    Raises:
        DataError: a claim that does not hold, or is undecided, has no note; or a note is about no claim.
    """
    parts = sorted(folder.glob("*.json"), key=lambda file: (not file.with_suffix(".png").exists(), file))
    found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in parts}
    notes = yaml.safe_load((folder / "notes.yaml").read_text(encoding="utf-8")) or {}
    _check_notes(found, notes)
    sections = [claims_table(found, notes)]
    for name, study in found.items():
        files = [file for file in (folder / f"{name}-figures.png", folder / f"{name}.png") if file.exists()]
        if not files:
            continue
        images = [f"![{name}]({folder.name}/{file.name})" for file in files]
        seeds = ", ".join(map(str, study["settings"]["seeds"]))
        sections += [f"### {name}, seeds {seeds}", f"```text\n{study['arms']}\n```", *images]
    return "\n\n".join(sections)


def claims_table(found: Mapping[str, Mapping[str, Any]], notes: Mapping[str, Mapping[str, str]]) -> str:
    """Format one line for each claim: place in the paper, its numbers, ours, and the verdict.

    Args:
        found: name → what `claims_as_json` gave.
        notes: name → claim → what was looked at and tried.
    """
    lines = ["| claim | place | paper | ours: difference [95 % interval], by seed | verdict |", "|---|---|---|---|---|"]
    for name, study in found.items():
        lines.append(f"| **{name}** | | | | |")
        for claim in study["claims"]:
            note = (notes.get(name) or {}).get(claim["claim"])
            verdict = claim["verdict"] if note is None else f"{claim['verdict']}: {note}"
            lines.append(f"| {claim['claim']} | {claim['place']} | {claim['paper']} | {_ours(claim)} | {verdict} |")
    return "\n".join(lines)


def _ours(claim: Mapping[str, Any]) -> str:
    form = form_of(claim["unit"])
    difference = form.with_interval(Estimate.from_json(claim), signed=True)
    seeds = ", ".join(form.text(number_from_json(value), signed=True) for value in claim["by_seed"])
    said = f"{difference} ({seeds})"
    if sorted(weight for weight, _, _ in claim["contrast"]) == [-1, 1]:
        terms = sorted(claim["contrast"])[::-1]
        reached = [form.text(number_from_json(claim["values"][f"{arm} {metric}"])) for _, arm, metric in terms]
        said = f"{reached[0]} against {reached[1]}: {said}"
    return said


def _check_notes(found: Mapping[str, Mapping[str, Any]], notes: Mapping[str, Mapping[str, str]]) -> None:
    verdicts = {(name, claim["claim"]): claim["verdict"] for name, study in found.items() for claim in study["claims"]}
    needed = {claim for claim, verdict in verdicts.items() if verdict != HOLDS}
    noted = {(name, claim) for name, of_study in notes.items() for claim in of_study or {}}
    if needed - noted or noted - set(verdicts):
        raise DataError(
            f"notes.yaml: expected a note on every claim that does not hold or is undecided. Without one: "
            f"{sorted(needed - noted)}; notes on no claim: {sorted(noted - set(verdicts))}."
        )


if __name__ == "__main__":
    write_document(sys.argv[1])
