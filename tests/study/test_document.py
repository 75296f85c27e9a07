"""The results in the documentation: the table of claims, its notes, and that docs/study.md is not out of date."""

import json
from pathlib import Path

import pytest
import yaml

from study.claims import Claim, Judged, Term, above
from study.document import BEGIN, END, results_of, write_document
from study.report import write_part
from study.running import StudyArguments
from trl_mmreason.data.rows import DataError
from trl_mmreason.evaluation.metrics import Estimate

DOCUMENT = Path(__file__).parents[2] / "docs/study.md"
CONFIGS = Path(__file__).parents[2] / "configs/study"

BETTER = Claim("ours is better", "Table 1", "60.2 against 57.5", above("ours", "theirs", "accuracy"))
LONGER = Claim("ours is longer", "Fig. 3", "longer", above("ours", "theirs", "tokens"), unit="number")
GAINS = Claim("ours gains", "Table 2", "+3.0", [Term(1, "ours", "delta")])
JUDGED = [
    Judged(BETTER, Estimate(0.05, (0.01, 0.09)), [0.04, 0.06], {"ours accuracy": 0.75, "theirs accuracy": 0.7}),
    Judged(LONGER, Estimate(-1.5, (-2.0, 0.5)), [-1.0, -2.0], {"ours tokens": 20.0, "theirs tokens": 21.5}),
    Judged(GAINS, Estimate(-0.03, (-0.04, -0.02)), [-0.03, -0.03], {"ours delta": -0.03}),
]
SETTINGS = {"part": "any", "seeds": [0, 10]}
NOTES = {"some": {"ours is longer": "Tried twice.", "ours gains": "Looked at the rewards."}}


@pytest.fixture
def document(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    write_part(folder, SETTINGS, JUDGED, "arm accuracy\nours 75.0")
    (folder / "claims.json").rename(folder / "some.json")
    (folder / "some.png").write_bytes(b"")
    (folder / "notes.yaml").write_text(yaml.safe_dump(NOTES))
    path = tmp_path / "study.md"
    path.write_text(f"# Study\n\n{BEGIN}\noutdated\n{END}\n\nThe end.\n")
    return path


def test_every_claim_has_a_line_and_every_part_its_arms(document):
    write_document(document)
    text = document.read_text()
    assert "outdated" not in text
    assert text.startswith(f"# Study\n\n{BEGIN}\n| claim ")
    assert text.endswith(f"![some](study/some.png)\n{END}\n\nThe end.\n")
    lines = [line for line in text.splitlines() if line.startswith("| ours")]
    assert lines == [
        "| ours is better | Table 1 | 60.2 against 57.5 | 75.0 against 70.0: +5.0 [+1.0, +9.0] (+4.0, +6.0) | holds |",
        "| ours is longer | Fig. 3 | longer | 20.00 against 21.50: -1.50 [-2.00, +0.50] (-1.00, -2.00) | undecided: "
        "Tried twice. |",
        "| ours gains | Table 2 | +3.0 | -3.0 [-4.0, -2.0] (-3.0, -3.0) | does not hold: Looked at the rewards. |",
    ]
    assert "### some, seeds 0, 10\n\n```text\narm accuracy\nours 75.0\n```" in text
    once = text
    write_document(document)
    assert document.read_text() == once


def test_a_claim_that_does_not_hold_needs_a_note_and_every_note_a_claim(document):
    notes = document.with_suffix("") / "notes.yaml"
    notes.write_text(yaml.safe_dump({"some": {"ours is longer": "Tried.", "ours is shorter": "Why?"}}))
    told = r"Without one: \[\('some', 'ours gains'\)\]; .* \[\('some', 'ours is shorter'\)\]"
    with pytest.raises(DataError, match=told):
        write_document(document)
    assert "outdated" in document.read_text()


def test_a_claim_that_holds_may_have_a_note(document):
    notes = document.with_suffix("") / "notes.yaml"
    notes.write_text(yaml.safe_dump({"some": {**NOTES["some"], "ours is better": "By construction."}}))
    write_document(document)
    assert "| holds: By construction. |" in document.read_text()


def test_where_all_claims_hold_there_need_be_no_notes(document):
    folder = document.with_suffix("")
    write_part(folder, SETTINGS, JUDGED[:1], "")
    (folder / "claims.json").replace(folder / "some.json")
    (folder / "notes.yaml").write_text("some:\n")
    write_document(document)
    assert "| holds |" in document.read_text()


def test_a_seed_without_a_number_is_shown_as_such(document):
    """Such as the share of right answers that were spoilt, where none was right; JSON knows no NaN."""
    nan = float("nan")
    fixed = Claim("ours spoils less", "Table 1", "none", above("theirs", "ours", "misjudgment_rate"))
    spoilt = {"ours misjudgment_rate": nan, "theirs misjudgment_rate": 0.2}
    folder = document.with_suffix("")
    write_part(folder, SETTINGS, [Judged(fixed, Estimate(nan, (nan, nan)), [0.1, nan], spoilt)], "")
    written = (folder / "claims.json").replace(folder / "some.json").read_text()
    (claim,) = json.loads(written, parse_constant=pytest.fail)["claims"]
    assert (claim["value"], claim["by_seed"], claim["verdict"]) == (None, [0.1, None], "undecided")
    (folder / "notes.yaml").write_text(yaml.safe_dump({"some": {"ours spoils less": "Nothing to spoil."}}))
    write_document(document)
    assert "| 20.0 against n/a: n/a [n/a, n/a] (+10.0, n/a) | undecided: Nothing" in document.read_text()


def test_a_file_without_marks_is_left_alone(document):
    document.write_text("# Study\n")
    with pytest.raises(DataError, match="expected '<!-- results: begin -->' once, and behind it"):
        write_document(document)
    assert document.read_text() == "# Study\n"


def test_the_documentation_is_what_the_results_say():
    shown = DOCUMENT.read_text().split(BEGIN)[1].split(END)[0]
    assert shown.strip() == results_of(DOCUMENT.with_suffix("")).strip()
    earlier = ("_token_mean", "_open_thoughts")
    for part in DOCUMENT.with_suffix("").glob("*.json"):
        if part.stem.endswith(earlier):
            assert f"**{part.stem}**" in shown
            assert f"### {part.stem}," not in shown
        else:
            assert part.with_suffix(".png").stat().st_size > 10_000


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_results_are_of_the_settings_that_are_shipped(config):
    led_to = json.loads((DOCUMENT.with_suffix("") / f"{config.stem}.json").read_text())["settings"]
    shipped = StudyArguments(**yaml.safe_load(config.read_text()))
    while shipped.decide and len(shipped.seeds) < len(led_to["seeds"]):
        shipped = shipped.with_another_seed()
    assert led_to == shipped.settings
    assert len(led_to["seeds"]) >= 5
