"""Every protocol on real models: the same numbers twice, for any batch, interrupted or not, with any grader."""

import json
import random

import pytest
from datasets import Dataset
from pages import page_of
from scripted import Scripted
from support import drawn_rows, full_but, load
from taught_policy import questions, reward_model, teach

from trl_mmreason.chain_of_step.process_reward import UnscorableRow
from trl_mmreason.chain_of_step.protocols import Chains, StepBeam
from trl_mmreason.data.row_loading import load_rows
from trl_mmreason.evaluation.evaluation_report import save_evaluation
from trl_mmreason.evaluation.files import write_evaluation
from trl_mmreason.evaluation.provenance import digest_of
from trl_mmreason.evaluation.results import summarise
from trl_mmreason.evaluation.runner import ANSWERS, evaluate
from trl_mmreason.generation import Failure, SamplingParams
from trl_mmreason.generation.engine import Chat
from trl_mmreason.generation.protocols import Direct, TwoTurn
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.grading import Grader, JudgeGrader
from trl_mmreason.jobs.store import Record, SettingsChanged, Store
from trl_mmreason.jobs.verdicts import verdict_stage
from trl_mmreason.srpo.protocols import Reflection

SHORT = SamplingParams(max_new_tokens=8, temperature=0.0)
DRAWN = SamplingParams(max_new_tokens=48, temperature=1.0)


@pytest.fixture(scope="module")
def drawn():
    return Dataset.from_list(drawn_rows(9))


@pytest.fixture(scope="module")
def chained():
    """Both questions of the taught policy, three times."""
    return Dataset.from_list([{**row, "id": f"{row['id']}-{k}"} for k in range(3) for row in questions()])


@pytest.fixture(scope="module")
def cases(drawn, chained, checkpoints):
    """Protocol → rows, model and processor, protocol, n, decoding."""
    plain, taught, scorer = load(checkpoints("qwen2_5_vl")), teach(), reward_model()
    return {
        "direct": (drawn, plain, Direct(), 1, SHORT),
        "direct of 3": (drawn, plain, Direct(), 3, SamplingParams(8, 1.0)),
        "two-turn": (drawn, plain, TwoTurn("Check it."), 1, SamplingParams(3, 0.0)),
        "reflection": (drawn, plain, Reflection(), 1, SHORT),
        "chain-of-step": (chained, taught, Chains(), 1, SamplingParams(48, 0.0)),
        "best-of-n": (chained, taught, Chains(scorer), 4, DRAWN),
        "step-beam": (chained, taught, StepBeam(scorer, n=3), 1, DRAWN),
    }


CASES = ("direct", "direct of 3", "two-turn", "reflection", "chain-of-step", "best-of-n", "step-beam")


def result_files(folder, samples, rows):
    """What is written of an evaluation, but for the images."""
    write_evaluation(folder, samples, summarise(samples), {}, rows)
    return {name: (folder / name).read_bytes() for name in ("results.json", "samples.jsonl", "results.txt")}


def run(case, folder, *, batch_size=4, engine=None, **settings):
    rows, (model, processor), protocol, n, sampling_params = case
    engine = engine or TransformersEngine(model, processor, batch_size=batch_size)
    settings |= {"n": n, "sampling_params": sampling_params, "seed": 3, "batch_size": batch_size}
    with Store(folder / "answers.sqlite") as store:
        samples = evaluate(rows, engine, store, protocol, **settings)
    return result_files(folder, samples, rows)


@pytest.fixture(scope="module")
def undisturbed(cases, tmp_path_factory):
    return {name: run(cases[name], tmp_path_factory.mktemp("undisturbed")) for name in CASES}


def assert_close(found, expected):
    """The samples are equal but for the last digits of scores: a reward model rounds as its batch is shaped."""
    for line, other in zip(found["samples.jsonl"].splitlines(), expected["samples.jsonl"].splitlines(), strict=True):
        one, two = json.loads(line), json.loads(other)
        for name in ("step_scores", "answer_score", "score"):
            assert one.pop(name, None) == pytest.approx(two.pop(name, None), abs=1e-5)
        for ours, theirs in zip(*(each.pop("extra", {}).get("worst", []) for each in (one, two)), strict=True):
            assert (ours[0], pytest.approx(ours[1], abs=1e-5)) == tuple(theirs)
        assert one == two


@pytest.mark.parametrize("batch_size", [1, 16])
@pytest.mark.parametrize("name", full_but("two-turn", CASES))
def test_the_same_for_every_batch_size(cases, undisturbed, tmp_path, name, batch_size):
    found = run(cases[name], tmp_path, batch_size=batch_size)
    assert found["results.json"] == undisturbed[name]["results.json"]
    if name in ("best-of-n", "step-beam"):
        assert_close(found, undisturbed[name])
    else:
        assert found == undisturbed[name]


def test_the_same_twice(cases, undisturbed, tmp_path):
    assert run(cases["direct of 3"], tmp_path) == undisturbed["direct of 3"]


class Dying:
    """An engine that is interrupted at some of its calls."""

    def __init__(self, engine, moments):
        self.engine, self.settings, self.moments = engine, engine.settings, moments

    def sample(self, requests, sampling_params):
        if self.moments.random() < 0.5:
            raise KeyboardInterrupt
        return self.engine.sample(requests, sampling_params)


@pytest.mark.parametrize("name", full_but("two-turn", CASES))
def test_interrupted_at_random_moments_it_ends_alike(cases, undisturbed, tmp_path, name):
    engine = Dying(TransformersEngine(*cases[name][1]), random.Random(name))
    found, interrupted = None, 0
    while found is None:
        try:
            found = run(cases[name], tmp_path, engine=engine)
        except KeyboardInterrupt:
            interrupted += 1
    assert interrupted
    assert found == undisturbed[name]


def test_what_the_samples_of_each_protocol_hold(cases, undisturbed):
    lines = {name: [json.loads(line) for line in undisturbed[name]["samples.jsonl"].splitlines()] for name in CASES}
    assert {name: len(found) for name, found in lines.items()} == {
        "direct": 9, "direct of 3": 27, "two-turn": 9, "reflection": 9,
        "chain-of-step": 6, "best-of-n": 24, "step-beam": 6,
    }  # fmt: skip
    assert {len(line["turns"]) for line in lines["two-turn"]} == {1, 2}  # a first answer that was cut has no second
    assert all(line["finish_reasons"] == ["length"] for line in lines["two-turn"] if len(line["turns"]) == 1)
    assert all("problem" in line for line in lines["reflection"])  # an untrained policy does not know the format
    assert any(turn["correct"] for line in lines["chain-of-step"] for turn in line["turns"])
    for line in lines["best-of-n"]:
        text, ends = line["turns"][-1]["text"], line["step_ends"]
        assert len(line["step_scores"]) == len(ends)
        assert all(text[:end].endswith("<|reasoning_step_end|>") for end in ends)
        assert 0 <= line["score"] <= 1
    assert any(len(line["step_ends"]) == 2 for line in lines["best-of-n"])
    beam = [line for line in lines["step-beam"] if "problem" not in line]
    assert beam
    assert all(len(line["step_scores"]) == len(line["step_ends"]) for line in beam)
    assert all("answer_score" in line for line in beam)


def test_the_best_of_n_is_the_highest_score(undisturbed):
    results = json.loads(undisturbed["best-of-n"]["results.json"])
    lines = [json.loads(line) for line in undisturbed["best-of-n"]["samples.jsonl"].splitlines()]
    tried = {}
    for line in lines:
        tried.setdefault(line["id"], []).append((line["score"], bool(line["turns"][0]["correct"])))
    chosen = [max(found, key=lambda pair: pair[0])[1] for found in tried.values()]
    assert results["metrics"]["best_of_4"]["value"] == sum(chosen) / len(chosen)


def test_every_family(checkpoints, drawn, tmp_path, family):
    case = (drawn, load(checkpoints(family)), Direct(), 1, SHORT)
    assert run(case, tmp_path / "one", batch_size=1) == run(case, tmp_path / "many", batch_size=16)


def test_a_system_prompt_reaches_the_policy(drawn, tmp_path):
    engine = Scripted(lambda request, times: "7")
    with Store(tmp_path / "answers.sqlite") as store:
        evaluate(drawn, engine, store, Direct(), system_prompt="Think.")
    assert {request.messages[0]["content"] for request in engine.asked} == {"Think."}


def test_reflections_are_read_in_both_parts(tmp_path):
    texts = {
        "fixed": "<think>a</think> <answer>8</answer> <reflection>no</reflection> <think>b</think> <answer>7</answer>",
        "first alone": "<think>a</think> <answer>7</answer>",
        "no second": "<think>a</think> <answer>7</answer> <reflection>well",
        "prose": "It is 7.",
    }
    rows = [{"id": id_, "prompt": [{"role": "user", "content": id_}], "answer": "7"} for id_ in texts]
    engine = Scripted(lambda request, times: texts[request.messages[-1]["content"]])
    with Store(tmp_path / "answers.sqlite") as store:
        found = evaluate(Dataset.from_list(rows), engine, store, Reflection())
    verdicts = [[turn["correct"] for turn in sample["turns"]] for (sample,) in found.samples]
    assert verdicts == [[False, True], [True], [True, False], [False]]
    assert summarise(found).metrics["accuracy"].value == 1 / 4


def test_another_grader_asks_nothing_again(drawn, tmp_path):
    rows = Dataset.from_list([{"id": "half", "prompt": [{"role": "user", "content": "?"}], "answer": "0.5"}])
    engine = Scripted(lambda request, times: r"\boxed{0.502}")
    judge = Scripted(lambda request, times: "Judgement: 1", kind="judge")
    graders = {"strict": Grader(), "lenient": Grader(tolerance="lenient"), "judge": JudgeGrader(Chat(judge))}
    with Store(tmp_path / "answers.sqlite") as store:
        found = {}
        for name, grader in [*graders.items(), *graders.items()]:
            ((sample,),) = evaluate(rows, engine, store, Direct(), grader=grader).samples
            found[name] = (sample["turns"][0]["correct"], sample["turns"][0]["decided_by"])
        assert list(store.stages()) == [
            f"{ANSWERS}-questions", ANSWERS, *(verdict_stage(ANSWERS, grader) for grader in graders.values())
        ]  # fmt: skip
    assert found == {"strict": (False, "rules"), "lenient": (True, "rules"), "judge": (True, "judge")}
    assert len(engine.asked) == len(judge.asked) == 1


class Counted:
    """An engine or a process reward model that counts what it is asked; it refuses the texts of `unscorable`."""

    def __init__(self, asked):
        self.asked, self.settings, self.unscorable, self.count = asked, asked.settings, (), 0

    def sample(self, requests, sampling_params):
        self.count += len(requests)
        return self.asked.sample(requests, sampling_params)

    def score(self, rows):
        self.count += len(rows)
        if any(row["completion"] in self.unscorable for row in rows):
            raise UnscorableRow("too long")
        return self.asked.score(rows)


@pytest.mark.full
def test_another_scorer_samples_nothing_again(cases, undisturbed, tmp_path):
    rows, policy, _, n, params = cases["best-of-n"]
    engine = Counted(TransformersEngine(*policy))
    first, second = Counted(reward_model()), Counted(reward_model(seed=2))
    protocols = {
        "first": Chains(first), "second": Chains(second), "steps alone": Chains(first, step_weight=1.0),
        "none": Chains(),
    }  # fmt: skip
    files, counts = {}, {}
    for name, protocol in protocols.items():
        files[name] = run((rows, policy, protocol, n, params), tmp_path, engine=engine)
        counts[name] = (engine.count, first.count, second.count)
    assert files["first"] == undisturbed["best-of-n"]
    scored = counts["first"][1]
    assert counts == {"first": (24, scored, 0)} | dict.fromkeys(["second", "steps alone", "none"], (24, scored, scored))
    lines = {name: [json.loads(line) for line in found["samples.jsonl"].splitlines()] for name, found in files.items()}
    for one, other, steps, bare in zip(*lines.values(), strict=True):
        assert one["turns"] == other["turns"] == steps["turns"] == bare["turns"]
        assert steps["score"] == pytest.approx(sum(one["step_scores"]) / max(1, len(one["step_scores"])))
        assert (one["score"] != other["score"]) == bool(one["step_scores"] or "answer_score" in one)
        assert bare.keys() == one.keys() - {"step_scores", "answer_score", "score"}
    with Store(tmp_path / "answers.sqlite") as store:
        kinds = sorted(name.partition("-")[0] for name in store.stages() if name != f"{ANSWERS}-questions")
    assert kinds == [ANSWERS, "scores", "scores", "verdicts"]


def test_scores_without_a_store_are_those_with_one(cases, undisturbed, tmp_path):
    rows, policy, protocol, n, params = cases["best-of-n"]
    samples = evaluate(rows, TransformersEngine(*policy), None, protocol, n=n, sampling_params=params, seed=3)
    assert_close(result_files(tmp_path, samples, rows), undisturbed["best-of-n"])


@pytest.mark.full
def test_a_chain_that_cannot_be_scored_is_kept_and_scored_later(cases, undisturbed, tmp_path):
    rows, policy, _, n, params = cases["best-of-n"]
    whole = [json.loads(line) for line in undisturbed["best-of-n"]["samples.jsonl"].splitlines()]
    engine, scorer = Counted(TransformersEngine(*policy)), Counted(reward_model())
    scorer.unscorable = {next(line["turns"][0]["text"] for line in whole if "problem" not in line)}
    found = run((rows, policy, Chains(scorer), n, params), tmp_path, engine=engine)
    failed = json.loads(found["results.json"])["failures"]
    assert failed
    assert {one["reason"] for one in failed} == {"was not scored: UnscorableRow: too long"}
    scorer.unscorable = ()
    found = run((rows, policy, Chains(scorer), n, params), tmp_path, engine=engine, retry_failed=True)
    assert_close(found, undisturbed["best-of-n"])
    assert engine.count == 24


def test_scorers_that_sampling_depends_on_are_not_exchanged(cases, tmp_path):
    """Nor are stores taken for others in which answers were begun with a scorer among their settings."""
    rows, policy, protocol, n, params = cases["step-beam"]
    engine = TransformersEngine(*policy)
    asked = {"n": n, "sampling_params": params}
    with Store(tmp_path / "answers.sqlite") as store:
        evaluate(rows.select(range(2)), engine, store, protocol, **asked)
        with pytest.raises(SettingsChanged, match=r"protocol\.process_reward\.weights"):
            evaluate(rows.select(range(2)), engine, store, StepBeam(reward_model(seed=2), n=3), **asked)
        (begun,) = (settings for name, settings in store.stages().items() if name == ANSWERS)
    with Store(tmp_path / "old.sqlite") as store:
        chains = Chains(reward_model())
        store.open_stage(ANSWERS, {**begun, "protocol": chains.settings})
        store.save(ANSWERS, [Record(rows["id"][0], 0, "done", {"turns": []})])
        with pytest.raises(SettingsChanged, match="protocol.name: 'best-of-n' → 'chain-of-step'"):
            evaluate(rows, engine, store, chains, **asked)


def test_the_digest_of_the_questions_knows_what_is_asked_and_how_it_is_graded():
    row = {"id": "a", "prompt": [{"role": "user", "content": "?"}], "answer": "14", "group": "p"}
    asked = [{"role": "user", "content": "How many?"}]
    changes = [{}, {"id": "b"}, {"prompt": asked}, {"answer": "15"}, {"group": "q"}, {"choices": {"A": "14"}}]
    changes += [{"tolerance": {"relative": 0.05}}, {"tolerance": {"relative": 0.01}}]
    rows = [{**row, **change} for change in changes]
    assert len({digest_of(Dataset.from_list([each])) for each in rows}) == len(rows)
    assert digest_of(Dataset.from_list([row])) == digest_of(Dataset.from_list([dict(row)]))


def test_another_tolerance_grades_again(tmp_path):
    engine = Scripted(lambda request, times: r"\boxed{14.5}")
    row = {"id": "a", "prompt": [{"role": "user", "content": "?"}], "answer": "14"}
    found = []
    with Store(tmp_path / "answers.sqlite") as store:
        for relative in (0.05, 0.001):
            rows = Dataset.from_list([{**row, "tolerance": {"relative": relative}}])
            ((sample,),) = evaluate(rows, engine, store, Direct()).samples
            found.append(sample["turns"][0]["correct"])
    assert found == [True, False]
    assert len(engine.asked) == 1


def test_an_answer_about_which_the_judge_does_not_reply_has_no_verdict(tmp_path):
    rows = [{"id": answer, "prompt": [{"role": "user", "content": answer}], "answer": "7"} for answer in "78"]
    engine = Scripted(lambda request, times: request.messages[0]["content"])
    judge = Scripted(lambda request, times: Failure("too many requests"), kind="judge")
    with Store(tmp_path / "answers.sqlite") as store:
        found = evaluate(Dataset.from_list(rows), engine, store, Direct(), grader=JudgeGrader(Chat(judge)))
    right, unknown = (sample["turns"][0] for (sample,) in found.samples)
    assert right["correct"]
    assert (unknown["correct"], unknown["decided_by"]) == (None, "unreadable")
    assert "too many requests" in unknown["reason"]
    assert summarise(found).counts["failed"] == 0


def test_failed_samples_are_tried_again_when_that_is_asked_for(drawn, tmp_path):
    is_down = True
    ids = set(drawn["id"][:4])
    rows = Dataset.from_list([{"id": id_, "prompt": [{"role": "user", "content": id_}], "answer": "7"} for id_ in ids])

    def reply(request, times):
        return Failure("down") if is_down and request.messages[0]["content"] == min(ids) else "7"

    engine = Scripted(reply)

    def accuracy(**settings):
        with Store(tmp_path / "answers.sqlite") as store:
            return summarise(evaluate(rows, engine, store, Direct(), **settings)).metrics["accuracy"].value

    assert accuracy() == 3 / 4
    is_down = False
    assert accuracy() == 3 / 4
    assert accuracy(retry_failed=True) == 1


def test_what_would_mix_is_refused(drawn, tmp_path):
    engine = Scripted(lambda request, times: "7")
    with Store(tmp_path / "answers.sqlite") as store:
        evaluate(drawn, engine, store, Direct())
        with pytest.raises(SettingsChanged, match="protocol.name: 'direct' → 'two-turn'"):
            evaluate(drawn, engine, store, TwoTurn("Check it."))
        with pytest.raises(SettingsChanged, match="seed: 0 → 1"):
            evaluate(drawn, engine, store, Direct(), seed=1)
        with pytest.raises(ValueError, match="n=4 greedy samples are all alike"):
            evaluate(drawn, engine, store, Direct(), n=4)


def test_images_inside_the_text_are_asked_for_and_reported(checkpoints, tmp_path):
    rows = drawn_rows(3)
    rows[1]["prompt"] = [{"role": "user", "content": "Is <image> or\n<image> larger?"}]
    loaded = load_rows(Dataset.from_list(rows))
    assert loaded.problems == []
    engine = TransformersEngine(*load(checkpoints("qwen2_5_vl")))
    with Store(tmp_path / "answers.sqlite") as store:
        samples = evaluate(loaded.dataset, engine, store, TwoTurn("Check it."), sampling_params=SHORT)
    about = {"command": "mmreason evaluate mine", "benchmark": {"title": "Mine", "name": "mine"}}
    page = page_of(save_evaluation(tmp_path, loaded.dataset, samples, summarise(samples), about))
    asked = [json.loads(line)["question"] for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert asked[1] == "Is <image> or\n<image> larger?"
    (card,) = [card for card in page.with_class("question") if "larger?" in card["text"]]
    assert "Is <image> or" in card["text"]
    assert len([image for image in page.with_tag("img") if image["parent"]["parent"] is card]) == 2
