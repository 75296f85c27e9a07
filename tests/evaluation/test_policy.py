"""A policy amid training, evaluated in memory: the samples of a store, whatever the batch and the processes."""

import pytest
from accelerate import PartialState
from datasets import Dataset
from processes import outcomes
from scripted import Scripted, image, questions_of, reds
from support import drawn_rows, load

from trl_mmreason.evaluation.evaluation_report import evaluate_into
from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.evaluation.results import summarise
from trl_mmreason.evaluation.runner import evaluate
from trl_mmreason.generation import Failure, Sample, SamplingParams
from trl_mmreason.generation.protocols import Direct, TwoTurn, last_verdict
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.jobs.answering import answer_questions
from trl_mmreason.jobs.store import Store
from trl_mmreason.scripts.cold_start import greedy_accuracy

CHECK = TwoTurn("Please check.")


def answers(policy, rows, protocol=CHECK, tokens=4, batch_size=3, **settings):
    dataset, sampling_params = Dataset.from_list(rows), SamplingParams(tokens, temperature=0.0)
    engine = TransformersEngine(*policy, batch_size=batch_size)
    return evaluate(dataset, engine, None, protocol, sampling_params=sampling_params, batch_size=batch_size, **settings)


def texts(samples):
    return [[turn["text"] for turn in sample["turns"]] for (sample,) in samples.samples]


def test_a_store_holds_the_same_samples(checkpoints, tmp_path):
    policy, rows = load(checkpoints("qwen2_5_vl")), Dataset.from_list(drawn_rows(5))
    sampling_params, engine = SamplingParams(6, temperature=1.0), TransformersEngine(*policy)
    with Store(tmp_path / "s.sqlite") as store:
        kept = evaluate(rows, engine, store, CHECK, n=3, sampling_params=sampling_params, seed=2)
    assert evaluate(rows, engine, None, CHECK, n=3, sampling_params=sampling_params, seed=2, batch_size=4) == kept


def five_answers():
    """What one of several processes asks, and what it gets."""
    state, asked = PartialState(cpu=True), []

    def answer(request, times):
        asked.append(request.messages[0]["content"])
        return asked[-1].replace("question", "answer")

    prompts = [[{"role": "user", "content": f"question {k}"}] for k in range(5)]
    rows = Dataset.from_list([{"prompt": prompt, "answer": "7"} for prompt in prompts])
    samples = evaluate(rows, Scripted(answer), None, Direct(), batch_size=2)
    state.destroy_process_group()
    return {"samples": samples.samples, "asked": asked}


@pytest.mark.full
def test_two_processes_share_the_questions_and_each_has_all_answers():
    first, second = outcomes(five_answers, 2)
    assert first["samples"] == second["samples"]
    assert [sample["turns"][0]["text"] for (sample,) in first["samples"]] == [f"answer {k}" for k in range(5)]
    assert sorted(first["asked"] + second["asked"]) == [f"question {k}" for k in range(5)]


def test_rows_keep_their_order_and_get_their_number_for_an_id(checkpoints):
    rows = [{**row, "id": "own" if number == 1 else None} for number, row in enumerate(drawn_rows(5))]
    rows[3]["answer"] = ""  # cannot be used
    found = answers(load(checkpoints("qwen2_5_vl")), rows)
    assert [row["id"] for row in found.rows] == ["0", "own", "2", "3", "4"]
    assert summarise(found).unusable == ["3"]


def test_questions_that_share_an_id_stay_apart():
    """Each is a question of its own in the numbers, in the report, and in what is drawn for it."""
    prompts = [[{"role": "user", "content": f"question {k}"}] for k in range(3)]
    rows = Dataset.from_list([{"id": id_, "prompt": p, "answer": "7"} for id_, p in zip("aab", prompts, strict=True)])
    engine = Scripted(lambda request, times: "7")
    found = evaluate(rows, engine, None, Direct())
    assert [row["id"] for row in found.rows] == ["a#0", "a#1", "b"]
    assert len({question.problem for question in summarise(found).questions}) == 3
    assert len({request.seed for request in engine.asked}) == 3


def test_its_evaluation_is_saved_with_the_settings_of_training_and_without_a_store(tmp_path):
    """Images are kept under the ids of the samples, where questions share one."""
    row = {"id": "a", "prompt": [{"role": "user", "content": "?"}], "answer": "7"}
    rows, engine = questions_of([{**row, "images": [image(red)]} for red in (1, 2)]), Scripted(lambda *_: "7")
    results = evaluate_into(tmp_path, rows, engine, Direct(), training={"beta": 0.5})
    saved = read_evaluation(tmp_path)
    assert saved.results.metrics == results.metrics
    assert saved.about["training"] == {"beta": 0.5}
    assert {id_: reds(found) for id_, found in saved.images.items()} == {"a#0": [1], "a#1": [2]}
    assert not (tmp_path / "answers.sqlite").exists()


def test_the_checkpoints_own_penalties_do_not_count_and_the_mode_stays(checkpoints):
    """Training samples without the repetition penalty that a published checkpoint may come with, and so must this."""
    model, processor = load(checkpoints("qwen2_5_vl"))
    plain = texts(answers((model, processor), drawn_rows(6), tokens=8))
    model.generation_config.repetition_penalty = 3.0
    model.train()
    assert texts(answers((model, processor), drawn_rows(6), tokens=8)) == plain
    assert model.training


def test_failures_stay_in_their_place(caplog):
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": str(k)}], "answer": "7"} for k in range(3)])
    engine = Scripted(lambda request, times: Failure("torn") if request.messages[0]["content"] == "1" else "7")
    found = evaluate(rows, engine, None, Direct())
    assert found.samples[1] == [Failure("torn")]
    assert "answering: 1 of 3 samples failed, the first: torn" in caplog.text
    assert [sample["turns"][0]["correct"] for (sample,) in (found.samples[0], found.samples[2])] == [True, True]


def test_no_answer_begins_with_a_column_of_the_rows():
    """`Continuation` alone has one, `prefix`, which the data of a user may have for something else."""
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "?"}], "answer": "7", "prefix": "6"}])
    engine = Scripted(lambda request, times: "7")
    evaluate(rows, engine, None, Direct())
    assert [request.prefix for request in engine.asked] == [""]


def test_accuracy_is_the_share_of_answers_that_are_right(checkpoints):
    policy, rows = load(checkpoints("internvl")), drawn_rows(4)
    (first, *_), *_ = texts(answers(policy, rows, Direct()))
    for row, gold in zip(rows, (first.strip(), "nothing", "", "none"), strict=True):  # the third cannot be used
        row["answer"] = gold
    assert greedy_accuracy(*policy, Dataset.from_list(rows), max_new_tokens=4, batch_size=3) == 1 / 3


def test_a_tokenizer_alone_is_refused(checkpoints):
    model, processor = load(checkpoints("qwen2_5_vl"))
    with pytest.raises(TypeError, match="expected the processor"):
        answers((model, processor.tokenizer), drawn_rows(1))


def test_an_answer_that_failed_is_wrong(checkpoints, monkeypatch):
    policy, rows = load(checkpoints("qwen2_5_vl")), Dataset.from_list([{**row, "answer": "7"} for row in drawn_rows(4)])
    said = [[Sample("7", "stop")], Failure("torn"), [Sample("7", "stop")], [Sample("8", "stop")]]
    monkeypatch.setattr(TransformersEngine, "sample", lambda engine, requests, sampling_params: said)
    assert greedy_accuracy(*policy, rows, max_new_tokens=4, batch_size=4) == 1 / 2


def test_what_nobody_has_graded_yet_is_said_and_graded_by_the_next_run(tmp_path):
    """Processes that are started by hand, with a rank, wait for nobody: they share out what there is at their time."""
    prompt = [{"role": "user", "content": "?"}]
    rows = Dataset.from_list([{"id": id_, "prompt": prompt, "answer": "7"} for id_ in "abcd"])
    engine = Scripted(lambda request, times: "7")
    with Store(tmp_path / "s.sqlite") as store:
        for rank in range(2):
            found = answer_questions(rows, engine, store, Direct(), stage="x", rank=rank, world_size=2)
        assert [one.reason for (one,) in found if isinstance(one, Failure)] == ["was not graded"]
        whole = answer_questions(rows, engine, store, Direct(), stage="x")
        assert [one["turns"][0]["correct"] for (one,) in whole] == [True] * 4
    assert len(engine.asked) == 4


def test_an_answer_that_was_never_given_is_not_right():
    cases = [([True], 2, False), ([True, False], 2, False), ([None], 2, None), ([True], 1, True)]
    for given, turns, expected in cases:
        assert last_verdict({"turns": [{"correct": one} for one in given]}, turns) is expected
