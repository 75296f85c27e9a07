"""Evaluation of responses in SRPO's format: a real tiny policy, and texts put into its mouth."""

import math

import pytest
from datasets import Dataset
from support import drawn_rows, ids_of, load

from trl_mmreason.evaluation.metrics import METRICS
from trl_mmreason.srpo import evaluation as module
from trl_mmreason.srpo.evaluation import (
    compare_reflections,
    evaluate_reflections,
    reflection_metrics,
)

FIRST, SECOND = "<think>1+1=2</think> <answer>{}</answer>", "<think>1+1=2</think> <answer>{}</answer>"
CHECK = "<reflection>I look again.</reflection>"


def evaluate(checkpoints, monkeypatch, texts, rows=None, stage="before", **settings):
    """Evaluate a policy that writes `texts`, one a row; each gold answer is 2."""
    model, processor = load(checkpoints("qwen2_5_vl"))
    end = processor.tokenizer.eos_token_id
    written = [[*ids_of(processor, text), end] for text in texts]
    monkeypatch.setattr(module, "generate", lambda model, processor, prompts, **settings: written[: len(prompts)])
    rows = rows or [{**row, "answer": "2"} for row in drawn_rows(len(texts))]
    found = evaluate_reflections(
        model, processor, Dataset.from_list(rows), stage=stage, max_new_tokens=99, batch_size=len(texts), **settings
    )
    return found, [len(ids) for ids in written], lambda text: len(ids_of(processor, text))


def test_a_response_is_cut_behind_its_first_answer_and_graded_twice(checkpoints, monkeypatch):
    texts = [
        f"{FIRST.format(2)} {CHECK} {SECOND.format(2)}",
        f"{FIRST.format(3)} {CHECK} {SECOND.format(2)}",
        f"{FIRST.format(3)} {CHECK} {SECOND.format(4)}",
        f"{FIRST.format(2)} {CHECK} {SECOND.format(3)}",
        FIRST.format(2),
        "<think>1+1=2",
        f"{CHECK} {SECOND.format(2)}",
    ]
    found, lengths, tokens = evaluate(checkpoints, monkeypatch, texts)
    assert [t.transition for t in found] == ["1→1", "0→1", "0→0", "1→0", "1→0", "0→0", "1→0"]
    assert [t.first for t in found] == [FIRST.format(x) for x in (2, 3, 3, 2, 2)] + ["<think>1+1=2", texts[6]]
    assert [t.second for t in found] == [f"{CHECK} {SECOND.format(x)}" for x in (2, 2, 4, 3)] + [None] * 3
    # Eq. 8; without a reflection behind a first answer there is no effect
    assert [t.effectiveness for t in found] == [0.25, 0.5, 0.0, -0.25, 0.0, 0.0, 0.0]
    assert [t.problem for t in found[:5]] == [None, None, None, None, "missing <reflection>"]
    assert found[5].problem.startswith("unclosed <think>")
    assert [t.response_tokens for t in found] == lengths
    assert [t.reflection_tokens > 0 for t in found] == [True] * 4 + [False] * 3
    assert found[1].shown().rewards == {
        "I_eff": 0.5,
        "response tokens": lengths[1],
        "reflection tokens": found[1].reflection_tokens,
    }
    assert abs(found[0].reflection_tokens - tokens(CHECK)) <= 1  # a token may hold the space before a tag too


def test_a_second_answer_that_is_missing_is_wrong_or_earns_nothing(checkpoints, monkeypatch):
    texts = [f"{FIRST.format(2)} {CHECK}", f"{FIRST.format(3)} {CHECK}"]
    for settings, effects in (({}, [-0.25, 0.0]), ({"missing_second_is_wrong": False}, [0.0, 0.0])):
        found, _, _ = evaluate(checkpoints, monkeypatch, texts, **settings)
        assert [t.effectiveness for t in found] == effects
        assert [t.transition for t in found] == ["1→0", "0→0"]


def test_a_thought_that_the_template_opened_is_shown_with_the_response(checkpoints, monkeypatch):
    _, processor = load(checkpoints("qwen2_5_vl"))
    opened = "{% if add_generation_prompt and think %}<think>\n{% endif %}"
    text = f"{FIRST.format(2)} {CHECK} {SECOND.format(2)}"
    written = [[*ids_of(processor, text.removeprefix("<think>")), processor.tokenizer.eos_token_id]]
    monkeypatch.setattr(module, "generate", lambda *_, **__: written)
    processor.chat_template += opened
    rows = Dataset.from_list([{**drawn_rows(1)[0], "answer": "2"}])
    model, _ = load(checkpoints("qwen2_5_vl"))
    settings = {"stage": "after", "max_new_tokens": 99}
    [found] = evaluate_reflections(model, processor, rows, chat_template_kwargs={"think": True}, **settings)
    assert (found.first, found.second) == (FIRST.format(2), f"{CHECK} {SECOND.format(2)}")
    assert found.transition == "1→1"
    [plain] = evaluate_reflections(model, processor, rows, **settings)
    assert plain.problem == "unopened </think>"


def test_rows_without_a_usable_gold_answer_are_left_out(checkpoints, monkeypatch):
    rows = [{**row, "answer": answer} for row, answer in zip(drawn_rows(2), ["", "2"], strict=True)]
    found, _, _ = evaluate(checkpoints, monkeypatch, [FIRST.format(2)] * 2, rows)
    assert [(t.id, t.answer, t.stage) for t in found] == [(rows[1]["id"], "2", "before")]


def test_a_random_policy_is_asked_with_the_system_prompt_and_gets_nothing_right(checkpoints, monkeypatch):
    model, processor = load(checkpoints("qwen2_5_vl"))
    rows, asked = drawn_rows(4), []
    real = module.generate

    def spy(model, processor, prompts, **settings):
        asked.extend(processor.tokenizer.decode(prompt.ids) for prompt in prompts)
        return real(model, processor, prompts, **settings)

    monkeypatch.setattr(module, "generate", spy)
    for prompt in (None, "Use the tags."):
        found = evaluate_reflections(
            model, processor, Dataset.from_list(rows), stage="x", max_new_tokens=5, batch_size=3, system_prompt=prompt
        )
        assert [t.id for t in found] == [row["id"] for row in rows]
        assert [t.transition for t in found] == ["0→0"] * 4
        assert all(1 <= t.response_tokens <= 5 for t in found)
    assert ["Use the tags." in text for text in asked] == [False] * 4 + [True] * 4
    assert found[0].question == rows[0]["prompt"][0]["content"]


def test_metrics_of_four_responses():
    # 1→1, 0→1, 0→0, 1→0; the third does not reflect, so that the mean reflection is (10 + 20 + 30) / 3
    metrics = reflection_metrics(
        [True, False, False, True],
        [True, True, False, False],
        [0.25, 0.5, 0.0, -0.25],
        [40, 50, 20, 50],
        [10, 20, 0, 30],
    )
    assert metrics == {
        "acc_t1": 0.5,
        "acc_t2": 0.5,
        "kept_share": 0.25,
        "correction_share": 0.25,
        "failed_share": 0.25,
        "misjudgment_share": 0.25,
        "effectiveness": 0.125,
        "response_tokens": 40.0,
        "reflection_tokens": 20.0,
    }
    assert metrics.keys() <= METRICS.keys()
    assert math.isnan(reflection_metrics([True], [True], [0.0], [9], [0])["reflection_tokens"])


def test_before_and_after_are_compared_question_by_question(checkpoints, monkeypatch):
    wrong = f"{FIRST.format(3)} {CHECK} {SECOND.format(3)}"
    right = f"{FIRST.format(3)} {CHECK} {SECOND.format(2)}"
    before, _, _ = evaluate(checkpoints, monkeypatch, [wrong, wrong])
    after, _, _ = evaluate(checkpoints, monkeypatch, [right, right], stage="after")
    rows = compare_reflections(before, after)
    assert rows["correction_share"].change.value == rows["acc_t2"].change.value == 1.0
    assert rows["effectiveness"].after.interval == (0.5, 0.5)
    assert rows["response_tokens"].change.value == 0.0


def test_a_tokenizer_alone_is_refused(checkpoints):
    model, processor = load(checkpoints("qwen2_5_vl"))
    with pytest.raises(TypeError, match="expected the processor"):
        evaluate_reflections(model, processor.tokenizer, Dataset.from_list(drawn_rows(1)), stage="x", max_new_tokens=4)
