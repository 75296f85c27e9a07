import pytest
from datasets import Dataset
from support import drawn_rows, load

from trl_mmreason.evaluation.two_turn import answer_in_two_turns, evaluate_two_turns

FOLLOWUP = "Please check."


def test_a_batch_gives_what_one_by_one_gives(family, checkpoints):
    model, processor = load(checkpoints(family))
    rows = drawn_rows(6)  # with one picture, two and none
    together = answer_in_two_turns(model, processor, rows, FOLLOWUP, max_new_tokens=6)
    for row, answers in zip(rows, together, strict=True):
        assert answer_in_two_turns(model, processor, [row], FOLLOWUP, max_new_tokens=6) == [answers]


def test_a_first_answer_that_is_cut_gets_no_second_turn(checkpoints):
    model, processor = load(checkpoints("qwen2_5_vl"))
    model.generation_config.eos_token_id = None  # leaves the tokenizer's own, never sampled by a random model
    answers = answer_in_two_turns(model, processor, drawn_rows(3), FOLLOWUP, max_new_tokens=3)
    assert [second for _, second in answers] == [None, None, None]


def test_one_trajectory_a_row_in_the_order_of_the_rows(checkpoints):
    model, processor = load(checkpoints("qwen2_5_vl"))
    rows = drawn_rows(5)
    rows[3]["answer"] = ""  # an unusable gold answer leaves its row out
    found = evaluate_two_turns(
        model, processor, Dataset.from_list(rows), FOLLOWUP, stage="before", max_new_tokens=4, batch_size=2
    )
    assert [t.id for t in found] == [row["id"] for row in rows if row["answer"]]
    assert {t.stage for t in found} == {"before"}
    assert [len(t.images) for t in found] == [1, 2, 0, 2]
    assert [t.question for t in found] == [row["prompt"][0]["content"] for row in rows if row["answer"]]


@pytest.mark.parametrize("gold", ["right", "wrong"])
def test_answers_are_graded_against_the_gold(checkpoints, gold):
    model, processor = load(checkpoints("internvl"))
    rows = drawn_rows(2)
    texts = answer_in_two_turns(model, processor, rows, FOLLOWUP, max_new_tokens=4)
    for row, (first, _) in zip(rows, texts, strict=True):
        row["answer"] = first.strip() if gold == "right" else "nothing that a model writes"
    found = evaluate_two_turns(model, processor, Dataset.from_list(rows), FOLLOWUP, stage="x", max_new_tokens=4)
    assert [t.first_correct for t in found] == [gold == "right"] * len(found)


def test_the_checkpoints_own_penalties_do_not_count(checkpoints):
    """Training samples without the repetition penalty that a published checkpoint may come with, and so must this."""
    model, processor = load(checkpoints("qwen2_5_vl"))
    rows = drawn_rows(6)
    plain = answer_in_two_turns(model, processor, rows, FOLLOWUP, max_new_tokens=8)
    model.generation_config.repetition_penalty = 3.0
    assert answer_in_two_turns(model, processor, rows, FOLLOWUP, max_new_tokens=8) == plain
    penalised = answer_in_two_turns(model, processor, rows, FOLLOWUP, max_new_tokens=8, repetition_penalty=3.0)
    assert penalised != plain


def test_a_tokenizer_alone_is_refused(checkpoints):
    model, processor = load(checkpoints("qwen2_5_vl"))
    with pytest.raises(TypeError, match="expected the processor"):
        evaluate_two_turns(
            model, processor.tokenizer, Dataset.from_list(drawn_rows(1)), FOLLOWUP, stage="x", max_new_tokens=4
        )
