"""Write the study's results into its page: its headlines, a table of all claims, and each part's arms and curves.

    python -m study.document docs/study.md

rewrites what stands between two pairs of marks in that file, from the files in a folder of its name: NAME.json (the
`claims.json` of a study), NAME.png and NAME-figures.png (its `curves.png` and `figures.png`), and notes.yaml (name →
claim → what was looked at and tried, which every claim that does not hold or is undecided needs). A part without
NAME.png is an earlier run: its claims are listed last, its arms are not, and it has no headline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import stdev
from typing import Any

import yaml

from trl_mmreason.data.folders import write_whole
from trl_mmreason.data.rows import DataError
from trl_mmreason.evaluation.metrics import Estimate, number_from_json

from .intervals import POWER, Rule, p_value
from .report import form_of

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
HEADLINES_BEGIN, HEADLINES_END = "<!-- headlines: begin -->", "<!-- headlines: end -->"
HOLDS = "holds"


def write_document(path: str | Path) -> None:
    """Write headlines and results into the file.

    Raises:
        DataError: the file has not all marks, or a claim that does not hold has no note.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8")
    text = _between(path, text, HEADLINES_BEGIN, HEADLINES_END, headlines_of(path.with_suffix("")))
    write_whole(path, _between(path, text, BEGIN, END, results_of(path.with_suffix(""))))


def _between(path: Path, text: str, begin: str, end: str, content: str) -> str:
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
        raise DataError(f"{path}: expected {begin!r} once, and behind it {end!r} once.")
    return f"{text.split(begin)[0]}{begin}\n{content}\n{end}{text.split(end)[1]}"


def published_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Name → what `claims_as_json` gave; earlier runs, which have no curves, last."""
    parts = sorted(folder.glob("*.json"), key=lambda file: (not file.with_suffix(".png").exists(), file))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in parts}


def results_of(folder: Path) -> str:
    """The results as Markdown.

    Raises:
        DataError: a claim that does not hold, or is undecided, has no note; or a note is about no claim.
    """
    found = published_in(folder)
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


def headlines_of(folder: Path) -> str:
    """Format one line for each claim that seeds were added for: its interval, p, and what could have been found."""
    titles = [
        *("config", "headline", "seeds", "difference [interval]", "p at the last look (needed)", "verdict"),
        f"found in {POWER:.0%} of studies: with these seeds, with all",
    ]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for name, study in published_in(folder).items():
        decide = study["decide"]
        if not decide or not (folder / f"{name}.png").exists():
            continue
        rule = Rule(decide["least"], decide["most"])
        for claim in study["claims"]:
            if claim["claim"] in decide["claims"]:
                lines.append(_headline(name, claim, rule))
    return "\n".join(lines)


def _headline(name: str, claim: Mapping[str, Any], rule: Rule) -> str:
    form, by_seed = form_of(claim["unit"]), [number_from_json(value) for value in claim["by_seed"]]
    seeds, spread = len(by_seed), stdev(by_seed)
    difference = form.with_interval(Estimate.from_json(claim), signed=True)
    p = f"{p_value(by_seed):.4f} ({rule.level(seeds):.4f})"
    found = ", ".join(form.text(rule.detectable(spread, n)) for n in (seeds, rule.most))
    cells = [f"`{name}`", claim["claim"], f"{seeds} of {rule.most}", difference, p, claim["verdict"], found]
    return f"| {' | '.join(cells)} |"


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
