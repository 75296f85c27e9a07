"""The results in the documentation: the table of claims, its notes, and that docs/study.md is not out of date."""

import json
import re
from pathlib import Path

import pytest
import yaml

from study.claims import Claim, Judged, Term, above
from study.document import BEGIN, END, HEADLINES_BEGIN, HEADLINES_END, headlines_of, results_of, write_document
from study.intervals import Rule
from study.parts import PARTS
from study.published import EARLIER, config_of, judged_again
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
    write_part(folder, SETTINGS, JUDGED, "arm accuracy\nours 75.0", {})
    (folder / "claims.json").rename(folder / "some.json")
    (folder / "some.png").write_bytes(b"")
    (folder / "notes.yaml").write_text(yaml.safe_dump(NOTES))
    path = tmp_path / "study.md"
    path.write_text(f"# Study\n\n{HEADLINES_BEGIN}\n{HEADLINES_END}\n\n{BEGIN}\noutdated\n{END}\n\nThe end.\n")
    return path


def test_every_claim_has_a_line_and_every_part_its_arms(document):
    write_document(document)
    text = document.read_text()
    assert "outdated" not in text
    assert f"\n\n{BEGIN}\n| claim " in text
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
    write_part(folder, SETTINGS, JUDGED[:1], "", {})
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
    write_part(folder, SETTINGS, [Judged(fixed, Estimate(nan, (nan, nan)), [0.1, nan], spoilt)], "", {})
    written = (folder / "claims.json").replace(folder / "some.json").read_text()
    (claim,) = json.loads(written, parse_constant=pytest.fail)["claims"]
    assert (claim["value"], claim["by_seed"], claim["verdict"]) == (None, [0.1, None], "undecided")
    (folder / "notes.yaml").write_text(yaml.safe_dump({"some": {"ours spoils less": "Nothing to spoil."}}))
    write_document(document)
    assert "| 20.0 against n/a: n/a [n/a, n/a] (+10.0, n/a) | undecided: Nothing" in document.read_text()


@pytest.mark.parametrize("text", ["# Study\n", f"{HEADLINES_BEGIN}\n{HEADLINES_END}\n", f"{BEGIN}\n{END}\n"])
def test_a_file_without_all_marks_is_left_alone(document, text):
    document.write_text(text)
    with pytest.raises(DataError, match=r"expected '<!-- (headlines|results): begin -->' once, and behind it"):
        write_document(document)
    assert document.read_text() == text


def test_a_headline_says_what_it_could_have_found(document):
    """Seeds +1, +2 and +3 points: a standard error of 1/√3, which is a t of 3.46 and with two degrees p = 0.0742.

    A first look at three of four seeds has 5 % · 3/4, and its interval ± 4.86 standard errors, as 1 − t/√(2 + t²) is
    0.0375 at t = 5.0.
    """
    folder = document.with_suffix("")
    decide = {"claims": ["ours is better"], "margin": 0.02, "least": 3, "most": 4}
    by_seed = [0.01, 0.02, 0.03]
    measured = Rule(3, 4).interval(by_seed)
    judged = [Judged(BETTER, measured, by_seed, {"ours accuracy": 0.7, "theirs accuracy": 0.68}, 0.02), *JUDGED[1:]]
    write_part(folder, {"part": "any", "seeds": [0, 10, 20]}, judged, "", decide)
    for name in ("some.json", "some_open_thoughts.json"):  # the latter is an earlier run, without curves
        (folder / name).write_text((folder / "claims.json").read_text())
    (folder / "claims.json").unlink()
    (line,) = headlines_of(folder).splitlines()[2:]
    config, headline, seeds, difference, p, verdict, found = [cell.strip() for cell in line.strip("|").split("|")]
    assert (config, headline, seeds, verdict) == ("`some`", "ours is better", "3 of 4", "undecided")
    assert p == "0.0742 (0.0375)"
    width = 100 * 0.01 / 3**0.5 * 4.9989
    assert difference == f"+2.0 [{2 - width:+.1f}, {2 + width:+.1f}]"
    with_three, with_four = map(float, found.split(", "))
    assert with_three > with_four > 1


def test_the_documentation_is_what_the_results_say():
    text = DOCUMENT.read_text()
    shown = text.split(BEGIN)[1].split(END)[0]
    assert shown.strip() == results_of(DOCUMENT.with_suffix("")).strip()
    assert text.split(HEADLINES_BEGIN)[1].split(HEADLINES_END)[0].strip() == headlines_of(DOCUMENT.with_suffix(""))
    for part in DOCUMENT.with_suffix("").glob("*.json"):
        if part.stem.endswith(EARLIER):
            assert f"**{part.stem}**" in shown
            assert f"### {part.stem}," not in shown
        else:
            assert part.with_suffix(".png").stat().st_size > 10_000


def test_what_the_page_says_of_the_parts_is_what_was_judged():
    """How many claims hold, and the table of AdaPO's second answers against plain GRPO's first."""
    text = DOCUMENT.read_text()
    found = {path.stem: json.loads(path.read_text())["claims"] for path in DOCUMENT.with_suffix("").glob("*.json")}
    counted = re.findall(r"^\| \d, `(\w+)` \| (\d+) of (\d+) (?:claims )?hold", text, re.MULTILINE)
    assert {name for name, _, _ in counted} == set(PARTS)
    for name, hold, of in counted:
        assert (sum(claim["verdict"] == "holds" for claim in found[name]), len(found[name])) == (int(hold), int(of))
    told = {"holds": "better", "does not hold": "worse", "undecided": "undecided"}
    row = re.compile(r"^\| of as many (.*?) \| (\d+) \| (\S+) \[(\S+), (\S+)\] \| (\w+) \|$", re.MULTILINE)
    shown = row.findall(text)
    assert len(shown) == 3
    for compared, seeds, *numbers, verdict in shown:
        (name,) = re.findall(r"`(\w+)`", compared)
        ending = f"plain GRPO's first answers, of as many {'rollouts' if 'rollouts' in compared else 'sampled answers'}"
        (claim,) = [each for each in found[name] if each["claim"].endswith(ending)]
        assert (len(claim["by_seed"]), told[claim["verdict"]]) == (int(seeds), verdict)
        assert [float(number) for number in numbers] == pytest.approx(
            [100 * claim[key] for key in ("value", "low", "high")], abs=0.0501
        )


@pytest.mark.parametrize("page", ["adapo.md", *(f"audit/{path.name}" for path in DOCUMENT.parent.glob("audit/*.md"))])
def test_other_pages_quote_published_intervals(page):
    """A difference with its interval, as "-3.5 [-8.7, 1.7]", is that of a claim, or its contrary."""
    quoted = re.findall(r"([+-]?\d+\.\d)\s+\[([+-]?\d+\.\d),\s+([+-]?\d+\.\d)\]", (DOCUMENT.parent / page).read_text())
    published = []
    for path in DOCUMENT.with_suffix("").glob("*.json"):
        for claim in json.loads(path.read_text())["claims"]:
            value, low, high = (100 * claim[key] for key in ("value", "low", "high"))
            published += [(value, low, high), (-value, -high, -low)]
    for numbers in quoted:
        assert any([float(each) for each in numbers] == pytest.approx(one, abs=0.0501) for one in published), numbers


@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_results_are_of_the_settings_that_are_shipped(config):
    led_to = json.loads((DOCUMENT.with_suffix("") / f"{config.stem}.json").read_text())["settings"]
    shipped = StudyArguments(**yaml.safe_load(config.read_text()))
    while shipped.decide and len(shipped.seeds) < len(led_to["seeds"]):
        shipped = shipped.with_another_seed()
    assert led_to == shipped.settings
    assert len(led_to["seeds"]) >= 5


@pytest.mark.parametrize("results", sorted(DOCUMENT.with_suffix("").glob("*.json")), ids=lambda file: file.stem)
def test_published_claims_are_judged_by_the_current_rule(results):
    """From their numbers per seed alone; `python -m study.published docs/study configs/study` writes them."""
    published = json.loads(results.read_text())
    args = config_of(results.stem, published, CONFIGS)
    assert published["decide"] == args.decide
    judged = judged_again(published, PARTS[published["settings"]["part"]].PART.claims, args)
    assert [each.claim.text for each in judged] == [claim["claim"] for claim in published["claims"]]
    for each, claim in zip(judged, published["claims"], strict=True):
        assert each.verdict == claim["verdict"]
        again = [each.measured.value, *each.measured.interval]
        assert again == pytest.approx([claim["value"], claim["low"], claim["high"]], abs=1e-3, nan_ok=True)


def test_a_claim_is_computed_from_published_ones():
    """Second answers against the other's first: +1.8 within ours, and −5.3 between first ones, seed by seed."""
    published = json.loads((DOCUMENT.with_suffix("") / "adapo_headline.json").read_text())
    found = {claim["claim"]: claim for claim in published["claims"]}
    gain, first = (
        found[f"AdaPO's {text}"]["by_seed"]
        for text in (
            "second answers are better than its first",
            "first answers are better than plain GRPO's of as many rollouts",
        )
    )
    asked = "AdaPO's second answers are better than plain GRPO's first answers, of as many rollouts"
    assert found[asked]["by_seed"] == pytest.approx([a + b for a, b in zip(gain, first, strict=True)])
    others = {**published, "claims": [claim for claim in published["claims"] if claim["claim"] != asked]}
    args = config_of("adapo_headline", published, CONFIGS)
    again = {each.claim.text: each for each in judged_again(others, PARTS["adapo"].PART.claims, args)}
    assert again[asked].by_seed == pytest.approx(found[asked]["by_seed"])
    assert again[asked].values == found[asked]["values"]
    unknown = Claim("theirs is short", "Table 1", "none", [Term(1, "grpo-8", "tokens")])
    assert judged_again({**others, "claims": others["claims"][:1]}, [unknown], args)[0].claim.text != unknown.text
