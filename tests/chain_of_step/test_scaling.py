"""Inference-time scaling: every point of the curves by hand, and a real policy through the store, killed or not."""

import json
import math

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from taught_policy import questions, reward_model, teach

from trl_mmreason.chain_of_step.process_reward import Scores
from trl_mmreason.chain_of_step.sampling import sample_paths
from trl_mmreason.chain_of_step.scaling import BEAM, PATHS, SCORES, inference_scaling
from trl_mmreason.chain_of_step.scaling_curves import STEP_WEIGHTS, ScoredQuestion, summarise
from trl_mmreason.chain_of_step.scaling_report import as_json, draw_scaling, format_scaling, write_report
from trl_mmreason.chain_of_step.template import ANSWER_END, STEP_END, Chain, Step, parse_chain, render_chain
from trl_mmreason.cli import main
from trl_mmreason.evaluation.metrics import Estimate
from trl_mmreason.evaluation.samples import best_of_n, group_sizes, pass_at_n, self_consistency
from trl_mmreason.grading import Grader
from trl_mmreason.rows import DataError
from trl_mmreason.sampling import Decoding, Failure, Sample, derive_seed
from trl_mmreason.sampling.answering import verdict_stage
from trl_mmreason.sampling.store import SettingsChanged, Store
from trl_mmreason.sampling.transformers_engine import TransformersEngine

# Two questions of four paths; the gold answers are 7 and 1/2.
SEVEN = ScoredQuestion(
    correct=[True, False, False, True],
    votes=["7", "8", "8", "7.0"],
    step_means=[0.9, 0.2, 0.5, 0.6],
    answer_scores=[0.4, 0.6, 0.8, 0.72],
    path_tokens=10,
    beam_correct={1: False, 2: True, 4: True},
    beam_tokens={1: 10, 2: 24, 4: 36},
)
HALF = ScoredQuestion(
    correct=[False, False, True, False],
    votes=[None, "3", "1/2", "4"],  # the first was cut
    step_means=[0.8, 0.1, 0.7, 0.4],
    answer_scores=[0.0, 0.92, 0.3, 0.2],
    path_tokens=30,
    beam_correct={1: False, 2: False, 4: True},
    beam_tokens={1: 30, 2: 48, 4: 132},
)
# Trajectory scores with w = 0.2: 0.50, 0.52, 0.74, 0.696 and 0.16, 0.756, 0.38, 0.24.
ACCURACY = {
    # 2 and 1 of 4 are right: n=2: 1 - C(2,2)/C(4,2) = 5/6 and 1 - C(3,2)/C(4,2) = 1/2
    "pass_at_n": {1: (2 / 4 + 1 / 4) / 2, 2: (5 / 6 + 1 / 2) / 2, 4: 1},
    # n=2: 7 before 8, 8 before 7.0; 3, 1/2 before 4. n=4: 7 = 7.0 ties with 8 and was first; 3 was first of three
    "self_consistency": {1: (2 / 4 + 1 / 4) / 2, 2: (1 / 2 + 1 / 2) / 2, 4: (1 + 0) / 2},
    # n=2: paths 1 and 2 (wrong, wrong); paths 1 and 2 (wrong, right). n=4: paths 2 and 1
    "best_of_n": {1: (2 / 4 + 1 / 4) / 2, 2: (0 + 1 / 2) / 2, 4: 0},
    "step_beam": {1: 0, 2: 1 / 2, 4: 1},
}
# w · steps + (1 - w) · answer is 0.4 + 0.5w, 0.6 - 0.4w, 0.8 - 0.3w, 0.72 - 0.12w: path 2 leads up to w = 0.44, then 3
# up to 0.52, then 0, both right. And 0.8w, 0.92 - 0.82w, 0.3 + 0.4w, 0.2 + 0.2w: 1 up to 0.51, 2 up to 0.75, then 0.
SWEEP = [0, 0, 0, 0, 0, 1 / 2, 1, 1, 1 / 2, 1 / 2, 1 / 2]


@pytest.fixture(scope="module")
def summary():
    return summarise([SEVEN, HALF])


def test_every_point_of_the_curves(summary):
    assert (summary.questions, summary.paths, summary.sweep_n) == (2, 4, 4)
    assert list(summary.accuracy) == list(ACCURACY)
    for name, curve in ACCURACY.items():
        values = {n: estimate.value for n, estimate in summary.accuracy[name].items()}
        assert values == pytest.approx(curve), name


def test_the_sweep_of_the_step_weight_rises_and_falls(summary):
    assert list(summary.sweep) == [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1]
    assert [estimate.value for estimate in summary.sweep.values()] == SWEEP


def test_the_curve_of_best_of_n_is_drawn_for_the_step_weight_that_is_asked_for():
    found = summarise([SEVEN, HALF], step_weight=0.7)
    assert found.accuracy["best_of_n"][4].value == SWEEP[7] == 1
    assert found.accuracy["pass_at_n"][2].value == pytest.approx(ACCURACY["pass_at_n"][2])


def test_intervals_are_over_questions(summary):
    # two questions: a resample has the first twice, both, or the second twice, in 1, 2 and 1 of 4 cases
    assert summary.accuracy["step_beam"][2] == Estimate(1 / 2, (0, 1))
    assert summary.accuracy["step_beam"][4] == Estimate(1, (1, 1))
    value, interval = 2 / 3, (1 / 2, 5 / 6)
    assert summary.accuracy["pass_at_n"][2].value == pytest.approx(value)
    assert summary.accuracy["pass_at_n"][2].interval == pytest.approx(interval)


def test_tokens_and_their_ratio(summary):
    costs = {n: {name: cost.value for name, cost in found.items()} for n, found in summary.tokens.items()}
    assert costs == {
        1: {"best_of_n": 20, "step_beam": 20, "ratio": 1},
        2: {"best_of_n": 40, "step_beam": 36, "ratio": 0.9},
        4: {"best_of_n": 80, "step_beam": 84, "ratio": 1.05},
    }
    assert summary.tokens[4]["ratio"].interval == (36 / 40, 132 / 120)


def test_where_tokens_are_not_known_the_question_counts_on_neither_side():
    found = summarise([SEVEN._replace(beam_tokens={1: math.nan, 2: 24, 4: 36}), HALF._replace(path_tokens=math.nan)])
    assert math.isnan(found.tokens[1]["ratio"].value)
    assert [found.tokens[2][name].value for name in ("best_of_n", "step_beam", "ratio")] == [20, 24, 1.2]


def test_equality_of_votes_is_the_caller_s():
    found = summarise([SEVEN, HALF], equal=str.__eq__)
    assert found.accuracy["self_consistency"][4].value == 0  # now 8 has two votes, and 7 and 7.0 one each


def test_groups_that_are_not_whole_do_not_count():
    correct, scores = np.array([[True, False, False, False, True]]), np.array([[0.1, 0.2, 0.2, 0.1, 0.9]])
    assert best_of_n(correct, scores, 2).tolist() == [0]
    assert best_of_n(correct, scores, 5).tolist() == [1]
    assert self_consistency(correct, [["1", "2", "3", "3", "1"]], 2).tolist() == [1 / 2]  # 1 before 2; 3 twice


def test_of_equal_scores_the_earliest_path_is_chosen():
    assert best_of_n(np.array([[False, True, False]]), np.array([[0.1, 0.6, 0.6]]), 3).tolist() == [1]


@given(
    st.integers(1, 9).flatmap(lambda n: st.lists(st.tuples(st.booleans(), st.sampled_from([0, 0.5, 1])), min_size=n))
)
def test_pass_at_n_never_falls_and_nothing_chosen_beats_it(paths):
    correct, scores = np.array([[right for right, _ in paths]]), np.array([[score for _, score in paths]])
    rising = [pass_at_n(correct, n)[0] for n in range(1, len(paths) + 1)]
    assert all(later >= earlier - 1e-12 for earlier, later in zip(rising, rising[1:], strict=False))
    assert rising[0] == pytest.approx(correct.mean())
    assert best_of_n(correct, scores, 1)[0] == pytest.approx(rising[0])
    assert best_of_n(correct, scores, len(paths))[0] <= rising[-1]
    assert best_of_n(correct, correct.astype(float), len(paths))[0] == rising[-1]  # who knows the truth reaches it


def test_sizes_of_groups():
    assert [group_sizes(n) for n in (1, 2, 3, 8, 10)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8], [1, 2, 4, 8, 10]]


# ---------------------------------------------------------------------------------------------------------- for readers


def test_the_picture_has_four_curves_and_the_sweep(summary):
    over_n, over_weight = draw_scaling(summary).axes
    assert [line.get_label() for line in over_n.lines] == ["pass@n", "self-consistency", "best of n", "step beam"]
    for line, curve in zip(over_n.lines, ACCURACY.values(), strict=True):
        assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == pytest.approx(curve)
    assert over_n.get_xscale() == "log"
    assert [label.get_text() for label in over_n.get_xticklabels()] == ["1", "2", "4"]
    (line,) = over_weight.lines
    assert (list(line.get_xdata()), list(line.get_ydata())) == (list(STEP_WEIGHTS), SWEEP)


def test_the_report(summary, tmp_path):
    found = summarise([SEVEN, HALF._replace(path_tokens=math.nan)], counts={"paths: malformed": 3, "paths: no_step": 0})
    write_report(found, tmp_path / "new" / "folder")
    written = {path.name: path for path in (tmp_path / "new" / "folder").iterdir()}
    assert sorted(written) == ["scaling.json", "scaling.png", "scaling.txt"]
    content = json.loads(written["scaling.json"].read_text())
    assert content == json.loads(json.dumps(as_json(found)))
    assert content["accuracy"]["step_beam"][1] == {"n": 2, "value": 0.5, "low": 0.0, "high": 1.0}
    assert content["sweep"][6]["step_weight"] == 0.6
    assert content["counts"] == {"paths: malformed": 3}
    assert written["scaling.png"].read_bytes().startswith(b"\x89PNG")
    lines = written["scaling.txt"].read_text().splitlines()
    assert lines[0] == "2 questions, 4 paths each"
    assert lines[5] == "2  66.7 [50.0, 83.3]     50.0 [50.0, 50.0]  25.0 [0.0, 50.0]   50.0 [0.0, 100.0]"
    assert lines[-1] == "3 paths: malformed"
    assert "2  20 [20, 20]  24 [24, 24]  1.20 [1.20, 1.20]" in lines


def test_what_is_not_known_is_null_in_json():
    unknown = [SEVEN._replace(path_tokens=math.nan), HALF._replace(path_tokens=math.nan)]
    found = as_json(summarise(unknown))
    assert found["tokens"][0]["ratio"] == {"value": None, "low": None, "high": None}
    assert "1  n/a [n/a, n/a]  n/a [n/a, n/a]  n/a [n/a, n/a]" in format_scaling(summarise(unknown))


# ------------------------------------------------------------------------------------- through the store, known by hand


def chain(answer, score=0.5):
    return render_chain(Chain([Step(f"only {score}", "", "")], answer))


FAILURE = Failure("the picture is too large")
CUT = chain("7").partition("<|answer_start|>")[0]
ROWS = [
    {"id": "sum", "answer": "7", "choices": None},
    {"id": "choice", "answer": "B", "choices": {"A": "dog", "B": "cat"}},
    {"id": "no gold", "answer": "", "choices": None},
    {"id": "broken", "answer": "7", "choices": None},
]
SCRIPT = {
    "sum": [chain("7.0", 0.2), FAILURE, CUT, chain("8", 0.9)],
    "choice": [chain("A"), chain("cat"), chain("B"), "I like dogs."],
    "broken": [FAILURE] * 4,
}
TOKENS = 100


class Scripted:
    """Writes the script's paths; a search gets the parts of the path of that number, whatever is kept."""

    settings = {"kind": "script"}

    def sample(self, requests, decoding):
        return [self.search(request) if decoding.stop else self.path(request) for request in requests]

    def path(self, request):
        name = request.messages[0]["content"]
        (text,) = [text for k, text in enumerate(SCRIPT[name]) if request.seed == derive_seed(0, name, k)]
        if isinstance(text, Failure):
            return text
        return [Sample(text, "length" if text == CUT else "stop", [0] * TOKENS)]

    def search(self, request):
        paths = SCRIPT[request.messages[0]["content"]][: request.n]
        if FAILURE in paths:
            return FAILURE
        ends = [STEP_END] if not request.prefix else [ANSWER_END]
        parts = [path.removeprefix(request.prefix).partition(end) for path in paths for end in ends]
        return [Sample(before + end, "stop", [0] * 10) for before, end, _ in parts]


class ScriptedReward:
    """A step scores what its name says, an answer 0.4."""

    settings = {"kind": "script"}

    def score(self, rows):
        chains = [parse_chain(row["completion"]) for row in rows]
        return [
            Scores(torch.tensor([float(step.name.split()[-1]) for step in one.steps]), one.answer and 0.4)
            for one in chains
        ]


def rows_of(rows):
    return Dataset.from_list([{**row, "prompt": [{"role": "user", "content": row["id"]}]} for row in rows])


def scripted_scaling(path, rows=ROWS, **settings):
    with Store(path) as store:
        return inference_scaling(rows_of(rows), Scripted(), ScriptedReward(), store, n=4, **settings)


def test_failed_cut_and_malformed_paths_are_wrong_and_a_gold_that_cannot_be_used_is_left_out(tmp_path):
    found = scripted_scaling(tmp_path / "s.sqlite", batch_size=8)
    assert found.questions == 3
    assert found.counts == {
        "questions without a gold answer that can be used": 1,
        "paths that could not be sampled": 1 + 4,
        "paths: no_answer": 1,
        "paths: no_chain": 1,
        "step beam, n=1: failed": 1,
        "step beam, n=2: failed": 2,  # of the sum, too
        "step beam, n=4: failed": 2,
    }
    values = {name: [one.value for one in curve.values()] for name, curve in found.accuracy.items()}
    # right: 1, 2 and 0 of 4; n=2: 1 - C(3,2)/C(4,2) = 1/2 and 1 - C(2,2)/C(4,2) = 5/6
    assert values["pass_at_n"] == pytest.approx([(1 / 4 + 2 / 4) / 3, (1 / 2 + 5 / 6) / 3, 2 / 3])
    # n=2: 7.0, 8 and A before cat, B. n=4: 7.0 before 8; cat and B are one answer, and win over A
    assert values["self_consistency"] == pytest.approx([(1 / 4 + 2 / 4) / 3, (1 / 2 + 1 / 2) / 3, 2 / 3])
    # w = 0.2. sum: 0.36, none, 0.1 (cut), 0.5: n=2 right, wrong; n=4 wrong. choice: three times 0.42, then 0
    assert values["best_of_n"] == pytest.approx([(1 / 4 + 2 / 4) / 3, (1 / 2 + 1 / 2) / 3, 0])
    # n=1: 7.0, A; otherwise none, A
    assert values["step_beam"] == pytest.approx([1 / 3, 0, 0])


def test_tokens_of_the_scripted_searches(tmp_path):
    found = scripted_scaling(tmp_path / "s.sqlite", rows=ROWS[:2])
    # three paths of the sum were sampled, all of the other: 100 tokens each. A candidate has 10, in two stages.
    assert {name: one.value for name, one in found.tokens[1].items()} == {
        "best_of_n": 100,
        "step_beam": 20,
        "ratio": 0.2,
    }


def test_choices_count_as_one_answer_however_they_are_named(tmp_path):
    found = scripted_scaling(tmp_path / "s.sqlite", rows=[ROWS[1]])
    assert found.accuracy["self_consistency"][4].value == 1


def test_when_no_gold_answer_can_be_used_it_says_so(tmp_path):
    with pytest.raises(DataError, match="none of the 1 gold answers can be used"):
        scripted_scaling(tmp_path / "s.sqlite", rows=[ROWS[2]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"step_weight": 1.1}, "step_weight is 1.1"), ({"max_steps": 0}, "max_steps=0"), ({"seed": 1}, "seed: 0 → 1")],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sampled(tmp_path, settings, message):
    with Store(tmp_path / "s.sqlite") as store:
        store.open_stage(PATHS, {"seed": 0})
        with pytest.raises(ValueError, match=message):
            inference_scaling(rows_of(ROWS), Scripted(), ScriptedReward(), store, n=4, **settings)
        assert list(store.records(PATHS)) == []


# --------------------------------------------------------------------------------------------- a real policy and reward


@pytest.fixture(scope="module")
def engine():
    return TransformersEngine(*teach())


@pytest.fixture(scope="module")
def prm():
    return reward_model()


DECODING = Decoding(max_new_tokens=40, top_p=0.95)


class Dies:
    """Passes calls on to an engine or reward model, and is killed at one of them."""

    def __init__(self, inner, at=None):
        self.inner, self.settings, self.at, self.calls = inner, inner.settings, at, 0

    def called(self):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt

    def sample(self, requests, decoding):
        self.called()
        return self.inner.sample(requests, decoding)

    def score(self, rows):
        self.called()
        return self.inner.score(rows)


def real_scaling(path, engine, prm):
    with Store(path) as store:
        rows = Dataset.from_list(questions())
        found = inference_scaling(rows, engine, prm, store, n=4, decoding=DECODING, seed=1, batch_size=3)
        stages = (PATHS, *(BEAM.format(n=n) for n in (1, 2, 4)))
        graded = {stage: verdict_stage(stage, Grader()) for stage in stages}
        records = {stage: list(store.records(stage)) for stage in (*stages, SCORES)}
        verdicts = {stage: [one.payload["turns"][0] for one in store.records(graded[stage])] for stage in stages}
        return found, records, verdicts


@pytest.fixture(scope="module")
def uninterrupted(engine, prm, tmp_path_factory):
    sampling, scoring = Dies(engine), Dies(prm)
    path = tmp_path_factory.mktemp("whole") / "s.sqlite"
    found, records, verdicts = real_scaling(path, sampling, scoring)
    return found, records, verdicts, path, sampling.calls, scoring.calls


def test_a_real_policy_through_the_store(uninterrupted):
    found, records, verdicts, *_ = uninterrupted
    assert {stage: len(kept) for stage, kept in records.items()} == {
        PATHS: 8,
        SCORES: 8,
        **{BEAM.format(n=n): 2 for n in (1, 2, 4)},
    }
    assert all(record.status == "done" for kept in records.values() for record in kept)
    right = {  # four paths each, in the order of the ids
        id_: [verdict["correct"] for verdict in verdicts[PATHS][4 * k : 4 * k + 4]]
        for k, id_ in enumerate(("picture", "sum"))
    }
    assert 0 < sum(map(sum, right.values())) < 8
    assert found.accuracy["pass_at_n"][1].value == pytest.approx(np.mean(list(right.values())))
    assert found.accuracy["pass_at_n"][4].value == np.mean([any(flags) for flags in right.values()])
    for n in (1, 2, 4):
        searches = [record.payload for record in records[BEAM.format(n=n)]]
        assert found.accuracy["step_beam"][n].value == np.mean([one["correct"] for one in verdicts[BEAM.format(n=n)]])
        assert found.tokens[n]["step_beam"].value == np.mean([search["tokens"] for search in searches])
        assert found.tokens[n]["best_of_n"].value == n * np.mean([one.payload["tokens"] for one in records[PATHS]])
    answers = {one["answer"] for one in verdicts[BEAM.format(n=4)]}
    assert answers <= {"5", "6", "7", "8", None}


@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.parametrize("who", ["policy", "reward model"])
def test_killed_and_resumed_it_gives_the_same(who, share, engine, prm, uninterrupted, tmp_path):
    found, records, verdicts, _, samplings, scorings = uninterrupted
    at = {"policy": math.ceil(share * samplings), "reward model": math.ceil(share * scorings)}[who]
    killed = {"policy": Dies(engine), "reward model": Dies(prm)}
    killed[who].at = at
    with pytest.raises(KeyboardInterrupt):
        real_scaling(tmp_path / "s.sqlite", *killed.values())
    assert real_scaling(tmp_path / "s.sqlite", engine, prm) == (found, records, verdicts)


def test_what_is_done_is_not_asked_again_whatever_the_step_weight(engine, prm, uninterrupted):
    found, _, _, store_path, *_ = uninterrupted
    dead = Dies(engine, at=1), Dies(prm, at=1)
    with Store(store_path) as store:
        rows, settings = Dataset.from_list(questions()), {"n": 4, "decoding": DECODING}
        again = inference_scaling(rows, *dead, store, seed=1, step_weight=1.0, **settings)
        assert again.sweep == found.sweep
        assert again.accuracy["best_of_n"][4] == found.sweep[1.0]
        with pytest.raises(SettingsChanged, match="seed: 1 → 2"):
            inference_scaling(rows, *dead, store, seed=2, **settings)
        with pytest.raises(SettingsChanged, match="max_steps: 16 → 3"):
            inference_scaling(rows, *dead, store, seed=1, max_steps=3, **settings)


def test_the_command(engine, prm, tmp_path, capsys):
    Dataset.from_list(questions()).to_parquet(tmp_path / "questions.parquet")
    engine.model.save_pretrained(tmp_path / "policy")
    engine.processing_class.save_pretrained(tmp_path / "policy")
    prm.save_pretrained(tmp_path / "prm")
    arguments = ["search", tmp_path / "questions.parquet", tmp_path / "out", "--model", tmp_path / "policy"]
    arguments += ["--process-reward", tmp_path / "prm", "--n", 2, "--max-new-tokens", 40, "--max-steps", 3]
    arguments = [str(argument) for argument in arguments]
    main(arguments)
    said = capsys.readouterr().out
    assert said.startswith("2 questions, 2 paths each\n")
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("scaling.*")}
    assert sorted(written) == ["scaling.json", "scaling.png", "scaling.txt"]
    assert written["scaling.txt"].decode().strip() in said
    main(arguments)
    assert capsys.readouterr().out == said
    with pytest.raises(SystemExit, match="mmreason search: step_beam_search: got n=2, .*temperature=0.0; expected"):
        main([*arguments, "--temperature", "0"])
    with pytest.raises(SystemExit, match="mmreason search: --adapter came with --server"):
        main([*arguments, "--server", "http://127.0.0.1:1/v1", "--adapter", "a"])
    with pytest.raises(SystemExit, match="mmreason search: ProcessRewardClient: no answer from http://127.0.0.1:1"):
        main([*arguments, "--process-reward", "http://127.0.0.1:1"])
    with pytest.raises(SystemExit, match="system_prompt: None → 'In steps.'"):
        main([*arguments, "--system-prompt", "In steps."])


def test_the_command_s_system_prompt_reaches_the_policy(engine, prm, tmp_path):
    rows = Dataset.from_list(questions())
    rows.to_parquet(tmp_path / "questions.parquet")
    engine.model.save_pretrained(tmp_path / "policy")
    engine.processing_class.save_pretrained(tmp_path / "policy")
    prm.save_pretrained(tmp_path / "prm")
    arguments = ["search", tmp_path / "questions.parquet", tmp_path / "out", "--model", tmp_path / "policy"]
    arguments += ["--process-reward", tmp_path / "prm", "--n", 1, "--max-new-tokens", 40, "--max-steps", 1]
    main([str(argument) for argument in [*arguments, "--system-prompt", "+++"]])
    spoken = rows.map(lambda row: {"prompt": [{"role": "system", "content": "+++"}, *row["prompt"]]})
    texts = []
    for number, asked in enumerate((spoken, rows)):
        with Store(tmp_path / f"{number}.sqlite") as store:
            paths = sample_paths(asked, engine, store, PATHS, n=1, decoding=Decoding(40, 1.0, 0.95))
        texts.append({id_: found[0].text for id_, found in paths.items()})
    with Store(tmp_path / "out" / "search.sqlite") as store:
        assert {record.id: record.payload["turns"][0]["text"] for record in store.records(PATHS)} == texts[0]
    assert texts[0] != texts[1]
