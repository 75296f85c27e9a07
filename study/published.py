"""Judge published results again by the current claims and the current rule, from their numbers per seed.

    python -m study.published docs/study configs/study

rewrites the claims of each NAME.json in the first folder: intervals and verdicts by the rule that NAME.yaml in the
second one has now, and further claims of the part whose contrast is a sum of published ones. Nothing is trained or
measured. An earlier run (NAME_token_mean.json, NAME_weaker_scorer.json) keeps its own rule for seeds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trl_mmreason.evaluation.metrics import number_from_json

from .claims import Claim, Judged, Term, claims_about
from .parts import PARTS
from .report import claims_as_json, write_json
from .running import BEFORE, StudyArguments

EARLIER = ("_token_mean", "_response_mean", "_open_thoughts", "_weaker_scorer")
"""Endings of the names of earlier runs, which have no configuration of their own."""


def config_of(name: str, published: Mapping[str, Any], configs: Path) -> StudyArguments:
    """The configuration of published results, with their seeds; of an earlier run only when it was looked at."""
    seeds = list(published["settings"]["seeds"])
    if name.endswith(EARLIER):
        return StudyArguments(seeds=seeds, decide=published["decide"])
    given = yaml.safe_load((configs / f"{name}.yaml").read_text(encoding="utf-8"))
    return StudyArguments(**{**given, "seeds": seeds})


def judged_again(published: Mapping[str, Any], claims: Sequence[Claim], args: StudyArguments) -> list[Judged]:
    """Judge the claims that can be computed from published ones: first the part's, in their order, then the others.

    Args:
        published: what `claims_as_json` gave.
        claims: the part's claims.
        args: the study's configuration, with as many seeds as the results have.
    """
    there = {claim.text for claim in claims}
    kept = [_claim_of(found) for found in published["claims"] if found["claim"] not in there]
    judged = []
    for claim in [*claims_about(claims, {BEFORE, *published["settings"]["arms"]}), *kept]:
        found = _derived(claim.contrast, published["claims"])
        if found is not None:
            judged.append(Judged(claim, args.rule.interval(found[0]), *found, args.margin(claim)))
    return judged


def _claim_of(found: Mapping[str, Any]) -> Claim:
    contrast = [Term(*term) for term in found["contrast"]]
    return Claim(found["claim"], found["place"], found["paper"], contrast, found["unit"])


def _derived(
    contrast: Sequence[Term], published: Sequence[Mapping[str, Any]]
) -> tuple[list[float], dict[str, float]] | None:
    """A contrast in each seed, and the mean of each of its terms; `None` if no sum of published contrasts is equal."""
    for found in published:
        if _weights(found["contrast"]) == _weights(contrast):
            values = {name: number_from_json(value) for name, value in found["values"].items()}
            return [number_from_json(value) for value in found["by_seed"]], values
    usable = [found for found in published if None not in found["by_seed"]]
    means = {name: value for found in usable for name, value in found["values"].items()}
    names = [f"{term.arm} {term.metric}" for term in contrast]
    columns = [_weights(found["contrast"]) for found in usable]
    terms = sorted({term for weights in (*columns, _weights(contrast)) for term in weights})
    matrix = np.array([[weights.get(term, 0.0) for weights in columns] for term in terms])
    wanted = np.array([_weights(contrast).get(term, 0.0) for term in terms])
    if not usable or not set(names) <= set(means):
        return None
    factors = np.linalg.lstsq(matrix, wanted)[0]
    if not np.allclose(matrix @ factors, wanted, atol=1e-9):
        return None
    by_seed = factors @ np.array([found["by_seed"] for found in usable])
    return (by_seed.round(12) + 0.0).tolist(), {name: means[name] for name in names}


def _weights(contrast: Sequence[Sequence[Any]]) -> dict[tuple[str, str], float]:
    """(arm, metric) → weight, with delta as what it is, acc_t2 − acc_t1."""
    weights: dict[tuple[str, str], float] = {}
    for weight, arm, metric in contrast:
        parts = {"acc_t2": weight, "acc_t1": -weight} if metric == "delta" else {metric: weight}
        for name, part in parts.items():
            weights[arm, name] = weights.get((arm, name), 0.0) + part
    return weights


def rewrite(path: Path, configs: Path) -> None:
    """Judge a file of published results again, and write it."""
    published = json.loads(path.read_text(encoding="utf-8"))
    args = config_of(path.stem, published, configs)
    judged = judged_again(published, PARTS[published["settings"]["part"]].PART.claims, args)
    write_json(path, claims_as_json(published["settings"], judged, published["arms"], args.decide))


if __name__ == "__main__":
    for results in sorted(Path(sys.argv[1]).glob("*.json")):
        rewrite(results, Path(sys.argv[2]))
