"""Part 1 at a small size, every arm trained for two steps, measured, judged; and running parts, once and in order."""

import json
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from small_study import ROOT, small

from study import adapo, self_evolution, sophia, srpo
from study.claims import Claim, Judged, claims_about, judge
from study.intervals import Rule
from study.report import draw_histories, format_arms, format_by_seed, format_claims, mean_curve, write_part
from study.running import BEFORE, Start, StudyArguments, begin, do_all, do_arm, in_waves, outcomes, same_model
from trl_mmreason.evaluation.metrics import Estimate
from trl_mmreason.jobs.store import SettingsChanged

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All arms of the first part, in this process."""
    args = small("adapo", tmp_path_factory.mktemp("study"))
    del args.arms["star"]  # a policy that was hardly taught corrects nothing
    for arm in (BEFORE, *args.arms):
        do_arm(args, adapo.PART, 0, arm)
    return args


def test_every_arm_is_measured_and_every_claim_judged(done, tmp_path):
    found = outcomes(done)
    assert set(found[0]) == {BEFORE, *done.arms}
    assert {len(table.numerator) for table in found[0].values()} == {6}
    claims = claims_about(adapo.CLAIMS, (BEFORE, *done.arms))
    left_out = [claim.text for claim in adapo.CLAIMS if claim not in claims]
    assert left_out == ["STaR lowers the second answers below the first"]
    judged = [judge(claim, found) for claim in claims]
    table = format_arms(found, adapo.METRICS)
    assert [line.split()[0] for line in table.splitlines()[1:]] == [BEFORE, *done.arms]
    write_part(tmp_path, done.settings, judged, table, done.decide)
    saved = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert [claim["claim"] for claim in saved] == [claim.text for claim in claims]
    assert {claim["verdict"] for claim in saved} <= {"holds", "does not hold", "undecided"}
    assert len(format_claims(judged).splitlines()) == 1 + len(judged)


def test_shares_that_belong_to_no_question_are_shown_by_seed():
    table = format_by_seed(
        {0: {"reward model, answer accuracy": 0.9, "round 2": 0.5}, 10: {"reward model, answer accuracy": 0.8}}
    )
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["mean,", "by", "seed", "mean", "0", "10"]
    assert lines[1] == ["reward", "model,", "answer", "accuracy", "85.0", "90.0", "80.0"]
    assert lines[2] == ["round", "2", "50.0", "50.0", "n/a"]


def test_answers_to_other_questions_are_refused(done, tmp_path):
    args = replace(done, output_dir=str(tmp_path / "study"), arms={"sft": done.arms["sft"]})
    shutil.copytree(done.output_dir, args.output_dir)
    asked = tmp_path / "study" / "seed-0" / "sft" / "evaluation" / "questions.jsonl"
    asked.write_text(asked.read_text().replace('"gold": "', '"gold": "1', 1))
    with pytest.raises(ValueError, match=r"seed-0/sft/evaluation has answers to other questions than .*/before/"):
        outcomes(args)


def test_an_arm_may_log_the_same_under_another_name(tmp_path):
    ours, theirs = [{"step": 1, "ours": 0.5}, {"step": 2, "ours": 0.7}], [{"step": 1, "b": 0.1}, {"step": 2, "b": 0.9}]
    images = []
    for histories in ({"ours": [ours]}, {"ours": [ours], "theirs": [theirs]}):
        draw_histories(histories, {("ours", "b"): ("Right", "share")}, tmp_path / "curves.png")
        images.append((tmp_path / "curves.png").read_bytes())
    assert images[0] != images[1]


def test_seeds_that_log_at_different_steps_have_one_curve():
    """At 2 the second is halfway from 0.2 to 0.6, at 3 the first a third from 0.5 to 0.8; at 6 there is one alone."""
    first = [{"step": 1, "b": 0.3}, {"step": 2, "b": 0.5}, {"step": 5, "b": 0.8}, {"step": 5, "train_loss": 1.0}]
    second = [{"step": 1, "b": 0.2}, {"step": 3, "a": 0.6, "b": 9.0}, {"step": 6, "a": 0.9}]
    steps, means = mean_curve([first, second], ("a", "b"))
    assert steps == [1, 2, 3, 5]
    assert means == pytest.approx([0.25, (0.5 + 0.4) / 2, (0.6 + 0.6) / 2, (0.8 + 0.8) / 2])
    assert mean_curve([first, [{"step": 1, "c": 0.3}]], ("a", "b")) == ([], [])


@pytest.mark.parametrize("arms", [11, 21])
def test_every_arm_has_a_curve(tmp_path, arms):
    """There are more arms than colours."""
    histories = {f"arm {n}": [[{"step": step, "loss": n} for step in (1, 2)]] for n in range(arms)}
    images = []
    for drawn in (histories, dict(list(histories.items())[:-1])):
        draw_histories(drawn, {"loss": ("Loss", "nats")}, tmp_path / "curves.png")
        images.append((tmp_path / "curves.png").read_bytes())
    assert images[0] != images[1]


def test_the_arms_sample_as_much():
    """As shipped: in part 1 as many answers, of which two-turn arms draw two at a time; in part 2 as many tokens."""

    def shipped(part):
        return yaml.safe_load((ROOT / f"configs/study/{part}.yaml").read_text())

    def drawn(part, arm):
        given = shipped(part)
        rl = {**given["rl"], **given["arms"][arm]}
        assert rl["per_device_train_batch_size"] % rl["num_generations"] == 0
        return rl["per_device_train_batch_size"] * rl["max_steps"]

    one_turn, two_turns = drawn("adapo", "grpo"), ("adapo", "score", "no-arm", "no-split-kl", "no-filters")
    assert {2 * drawn("adapo", arm) for arm in (*two_turns, "fixed-correction", "fixed-preservation")} == {one_turn}
    assert drawn("adapo", "grpo-8") * 2 == one_turn
    assert {2 * drawn("adapo_long", arm) for arm in ("adapo", "no-arm", "grpo-8")} == {drawn("adapo_long", "grpo")}
    assert len({drawn("adapo_filters", arm) for arm in shipped("adapo_filters")["arms"]}) == 1
    # a response with a reflection is some 27 / 8 times as long (69.9 tokens against 20.5)
    reflected = drawn("srpo", "srpo")
    assert {drawn("srpo", arm) for arm in ("no-reflection-reward", "answer-reward", "grpo-8")} == {reflected}
    assert {drawn("srpo", arm) for arm in ("grpo", "no-reflection-sft")} == {reflected // 8 * 27}
    # rounds of DPO find as many pairs as they find, and pairs are what an epoch is made of
    assert shipped("chain_of_step")["dpo"]["max_steps"] > 0
    assert not any("max_steps" in arm for arm in shipped("chain_of_step")["arms"].values())


def test_what_is_done_is_not_done_again(done):
    model = Path(done.output_dir) / "seed-0" / "adapo" / "model" / "model.safetensors"
    before = model.stat().st_mtime_ns
    do_arm(done, adapo.PART, 0, "adapo")
    assert model.stat().st_mtime_ns == before


def test_for_what_is_done_no_process_is_begun(done, tmp_path):
    script = tmp_path / "work.py"
    script.write_text("import sys\nopen(sys.argv[1], 'a').write(sys.argv[sys.argv.index('--only') + 1] + '\\n')\n")

    def begun(args):
        (tmp_path / "begun").write_text("")
        do_all(args, [sys.executable, str(script), str(tmp_path / "begun")])
        return set((tmp_path / "begun").read_text().split())

    every = {f"0/{arm}" for arm in (BEFORE, *done.arms)}
    arms = {**done.arms, "sft": {"max_steps": 3}}
    assert begun(done) == set()
    assert begun(replace(done, arms=arms)) == {"0/sft"}
    assert begun(replace(done, evaluation={"max_new_tokens": 9})) == every
    assert begun(replace(done, eval_rows=7)) == begun(replace(done, cold_start_rows=1)) == every
    again = replace(done, arms={"sft": done.arms["sft"], "again": {"of": "sft"}})
    linking = replace(adapo.PART, train=lambda start, arm, to: same_model(start.source(arm) / "model", to / "model"))
    do_arm(again, linking, 0, "again")
    assert begun(again) == set()
    changed = replace(again, arms={**again.arms, "sft": {"max_steps": 3}})
    assert begun(changed) == {"0/sft", "0/again"}
    with pytest.raises(SettingsChanged, match="of"):  # what it is made of is another
        do_arm(changed, linking, 0, "again")
    assert begun(replace(done, seeds=[0, 10])) == {job.replace("0/", "10/", 1) for job in every}


def test_processes_that_do_the_same_wait_for_each_other(done, tmp_path):
    """As workers that outlive a killed study, and arms that are begun at once when a seed has to be prepared."""

    def alone(name, seconds):
        (tmp_path / name).mkdir()  # fails while another is here
        time.sleep(seconds)
        (tmp_path / name).rmdir()

    def train(start, arm, folder):
        alone("train", 2)  # longer than the other one still prepares
        (folder / "model").mkdir()
        with (tmp_path / "trained").open("a") as told:
            told.write(arm)

    part = replace(
        adapo.PART,
        prepare=lambda start: alone("prepare", 0.2) or start.policy,
        train=train,
        measure=lambda start, protocol, arm, model, folder: (folder / "evaluation").mkdir(exist_ok=True),
    )
    args = replace(done, arms={"slow": {}})
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: do_arm(args, part, 0, "slow"), range(2)))
    assert (tmp_path / "trained").read_text() == "slow"


def test_an_arm_that_is_none_is_refused(done, tmp_path):
    with pytest.raises(ValueError, match=r"'grp': expected one of \['before', 'adapo', "):
        do_arm(done, adapo.PART, 0, "grp")
    args = small("srpo", tmp_path, arms={"reflections": {}})
    with pytest.raises(ValueError, match=r"'reflections': .* none of them named as \('cold_start', 'reflections'\)"):
        do_arm(args, srpo.PART, 0, "reflections")
    assert not list(tmp_path.iterdir())


def test_an_arm_that_was_begun_with_other_settings_is_refused(done):
    changed = small("adapo", done.output_dir)
    changed.rl["learning_rate"] = 1.0
    with pytest.raises(SettingsChanged, match=r"rl\.learning_rate: 0\.0 → 1\.0"):
        do_arm(changed, adapo.PART, 0, "adapo")
    # a policy that was taught otherwise
    with pytest.raises(SettingsChanged, match=f"cold_start_rows: {done.cold_start_rows} → 10"):
        do_arm(replace(done, cold_start_rows=10), adapo.PART, 0, BEFORE)


def test_workers_do_arms_in_processes_of_their_own(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(
        "import sys, pathlib\n"
        "job = sys.argv[sys.argv.index('--only') + 1]\n"
        "pathlib.Path(sys.argv[1], job.replace('/', '-')).write_text('done')\n"
        "sys.exit(job == '10/sft' and len(sys.argv) > 4)\n"
    )
    arms = {"of-that": {"of": "again"}, "again": {"of": "sft"}, "sft": {}}
    args = small("adapo", tmp_path / "out", seeds=[0, 10], arms=arms, workers=1)
    (tmp_path / "jobs").mkdir()
    do_all(args, [sys.executable, str(script), str(tmp_path / "jobs")])
    done = sorted((tmp_path / "jobs").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    order = ["before", "sft", "again", "of-that"]
    assert [path.name for path in done] == [f"{seed}-{arm}" for arm in order for seed in (0, 10)]
    (tmp_path / "failed").mkdir()
    with pytest.raises(RuntimeError, match="The study's 10/sft failed"):
        do_all(args, [sys.executable, str(script), str(tmp_path / "failed"), "fail"])
    assert {path.name for path in (tmp_path / "failed").iterdir()} == {"0-before", "10-before", "0-sft", "10-sft"}


def test_an_arm_waits_for_its_own_seed_alone(tmp_path):
    script = tmp_path / "work.py"
    script.write_text(
        "import pathlib, sys, time\n"
        "job, jobs = sys.argv[sys.argv.index('--only') + 1].replace('/', '-'), pathlib.Path(sys.argv[1])\n"
        "seed, arm = job.split('-')\n"
        "order = ['before', 'sft', 'again']\n"
        "assert all((jobs / f'{seed}-{earlier}').exists() for earlier in order[: order.index(arm)]), 'too early'\n"
        "end = time.monotonic() + 20\n"
        "while job == '0-sft' and not (jobs / '10-again').exists():\n"
        "    assert time.monotonic() < end, 'the other seed did not continue'\n"
        "    time.sleep(0.05)\n"
        "(jobs / job).write_text('done')\n"
    )
    (tmp_path / "jobs").mkdir()
    args = small("adapo", tmp_path / "out", seeds=[0, 10], arms={"sft": {}, "again": {"of": "sft"}}, workers=2)
    do_all(args, [sys.executable, str(script), str(tmp_path / "jobs")])
    assert len(list((tmp_path / "jobs").iterdir())) == 6


def test_arms_follow_what_they_are_made_of():
    arms = {"w": {"of": "search"}, "ours": {}, "search": {"of": "before"}, "round": {"of": "ours"}, "theirs": {}}
    assert in_waves(arms) == [["before"], ["ours", "search", "theirs"], ["w", "round"]]


def test_seeds_are_added_until_the_claims_are_decided(tmp_path):
    """Of two claims to decide and one other; the interval of the first is too wide for a margin of 2 points."""
    wide, narrow = Estimate(0.01, (-0.05, 0.05)), Estimate(0.0, (-0.01, 0.01))
    measured = {"first": wide, "second": narrow, "other": wide}
    decide = {"claims": ["first", "second"], "margin": 0.02, "least": 2, "most": 3}

    def needs_another_seed(args):
        claims = {Claim(text, "Table 1", "", ()): estimate for text, estimate in measured.items()}
        return args.needs_another_seed(
            [Judged(each, found, [], {}, args.margin(each)) for each, found in claims.items()]
        )

    args = small("adapo", tmp_path, seeds=[100, 110], decide=decide)
    assert needs_another_seed(args)
    more = args.with_another_seed()
    assert more.seeds == [100, 110, 120]
    assert not needs_another_seed(more)  # that was the last
    assert not needs_another_seed(small("adapo", tmp_path, seeds=[100, 110], decide={**decide, "margin": 0.05}))
    assert not needs_another_seed(small("adapo", tmp_path, seeds=[100, 110], decide={**decide, "claims": ["second"]}))
    assert not needs_another_seed(small("adapo", tmp_path))  # nothing is to be decided
    assert (args.rule, small("adapo", tmp_path, seeds=[100, 110]).rule) == (Rule(2, 3), Rule(2, 2))
    with pytest.raises(ValueError, match=r"got decide=\{'claims': \['first'\]\}; expected claims, margin, least and"):
        small("adapo", tmp_path, decide={"claims": ["first"]})
    for other in ({"least": 1}, {"least": 4}, {"most": 1, "least": 1}):
        with pytest.raises(ValueError, match=r"got 2 seeds, .* expected 2 ≤ least ≤ most, and no more than most seeds"):
            small("adapo", tmp_path, seeds=[100, 110], decide={**decide, **other})
    with pytest.raises(ValueError, match="got 4 seeds, and decide with least=2 and most=3"):
        small("adapo", tmp_path, seeds=[100, 110, 120, 130], decide=decide)


def test_what_cannot_be_meant_is_refused(tmp_path):
    for tasks in ({"sums": 1}, {"adding": 4}, {}):
        with pytest.raises(ValueError, match=rf"got tasks={re.escape(str(tasks))}, .* with a level of \(1, 2, 3\)"):
            small("adapo", tmp_path, tasks=tasks)
    for arms in ({"a": {"of": "b"}, "c": {}}, {"a": {"of": "b"}, "b": {"of": "a"}, "c": {}}):
        with pytest.raises(ValueError, match=r"'a' is of 'b', expected one of \['before', 'c'\]"):
            small("adapo", tmp_path, arms=arms)
    for seeds in ([], [0, 0], [10, 0, 5]):
        with pytest.raises(ValueError, match=rf"got seeds={re.escape(str(seeds))}; expected one or more, 6 or more"):
            small("adapo", tmp_path, seeds=seeds)
    with pytest.raises(ValueError, match="'before' is the initial policy"):
        small("adapo", tmp_path, arms={"before": {}})
    start = begin(small("adapo", tmp_path, arms={"odd": {"method": "dpo"}, "star": {}}), adapo.PART, 0)
    with pytest.raises(ValueError, match="method 'dpo', expected grpo, sft, star or one of"):
        adapo.train(start, "odd", tmp_path / "odd")
    with pytest.raises(ValueError, match="there is not one right revision to learn from: kept 0 of 256"):
        adapo.train(start, "star", tmp_path / "star")


@pytest.mark.parametrize("part", [adapo, srpo, sophia, self_evolution])
def test_an_arm_that_cannot_be_made_of_another_is_refused(tmp_path, part):
    args = StudyArguments(arms={"sft": {}, "odd": {"of": "sft"}})
    start = Start(args, 0, tmp_path, "policy", None, None)
    with pytest.raises(ValueError, match="'odd' is of 'sft', but would be trained from the policy that all begin with"):
        part.train(start, "odd", tmp_path / "odd")
