"""SRPO's reward functions on sampled ids: every part, in TRL and without it."""

import math

import pytest
from support import SMALL_RUN, ids_of, load, maker, written_by_hand
from trl import GRPOConfig, GRPOTrainer

from trl_mmreason.grading import Grader
from trl_mmreason.srpo.rewards import ReflectionRewards, check_tags_survive, tokens_until

FIRST_RIGHT = "<think>3+4=7</think> <answer>7</answer>"
FIRST_WRONG = "<think>3+4=8</think> <answer>8</answer>"
REFLECTION = " <reflection>I check it.</reflection>"
SECOND_RIGHT = " <think>3+4=7</think> <answer>7</answer>"
SECOND_WRONG = " <think>3+4=9</think> <answer>9</answer>"

# response → R_format, R_accuracy, I_ref, I_eff; the gold answer is 7
TABLE = {
    FIRST_RIGHT + REFLECTION + SECOND_RIGHT: (0.5, 0.5, 0.25, 0.25),
    FIRST_WRONG + REFLECTION + SECOND_RIGHT: (0.5, 0.0, 0.25, 0.5),
    FIRST_WRONG + REFLECTION + SECOND_WRONG: (0.5, 0.0, 0.25, 0.0),
    FIRST_RIGHT + REFLECTION + SECOND_WRONG: (0.5, 0.5, 0.25, -0.25),
    # A missing part costs that part only.
    FIRST_RIGHT: (0.5, 0.5, 0.0, 0.0),
    "<answer>7</answer>": (0.0, 0.5, 0.0, 0.0),
    FIRST_RIGHT + SECOND_WRONG: (0.5, 0.5, 0.0, 0.0),
    # Behind a reflection a second answer that is missing, not closed or empty is not right.
    FIRST_RIGHT + REFLECTION: (0.5, 0.5, 0.25, -0.25),
    FIRST_WRONG + REFLECTION: (0.5, 0.0, 0.25, 0.0),
    FIRST_RIGHT + REFLECTION + " <think>3+4=7</think> <answer>7": (0.5, 0.5, 0.25, -0.25),
    FIRST_RIGHT + REFLECTION + " <think>3+4=7</think> <answer></answer>": (0.5, 0.5, 0.25, -0.25),
    FIRST_RIGHT + REFLECTION + " <answer>7</answer>": (0.5, 0.5, 0.25, 0.25),
    "<answer>8</answer>" + REFLECTION + SECOND_RIGHT: (0.0, 0.0, 0.25, 0.5),
    FIRST_RIGHT + " <reflection> </reflection>" + SECOND_RIGHT: (0.5, 0.5, 0.0, 0.0),
    FIRST_RIGHT + REFLECTION + REFLECTION + SECOND_RIGHT: (0.5, 0.5, 0.0, 0.0),
    FIRST_RIGHT + REFLECTION + " <think>3+4=7</thi": (0.5, 0.5, 0.25, -0.25),
    # A single answer that is right counts wherever it stands.
    "<think>x</think>" + REFLECTION + SECOND_RIGHT: (0.0, 0.5, 0.0, 0.0),
    "<think>a <reflection>hm</reflection> b</think> <answer>7</answer>": (0.0, 0.5, 0.0, 0.0),
    # A second reflection takes the first one's reward, closed or not.
    FIRST_WRONG + REFLECTION + SECOND_RIGHT + " <reflection>": (0.5, 0.0, 0.0, 0.0),
    # The first answer counts, not the one that is right.
    "<think>x</think> <answer>8</answer> <answer>7</answer>": (0.5, 0.0, 0.0, 0.0),
    "7": (0.0, 0.0, 0.0, 0.0),
    "": (0.0, 0.0, 0.0, 0.0),
}


def paid(rewards, ids, golds, **columns):
    return [function(completion_ids=ids, answer=golds, **columns) for function in rewards.functions]


def test_the_whole_table(processor):
    ids = [ids_of(processor, text) for text in TABLE]
    *parts, _ = paid(ReflectionRewards(processor), ids, ["7"] * len(ids))
    assert dict(zip(TABLE, zip(*parts, strict=True), strict=True)) == TABLE


def test_a_missing_second_answer_may_earn_nothing_instead(processor):
    """right → missing costs nothing then, and a response whose second answer is there is paid as before."""
    texts = [FIRST_RIGHT + REFLECTION, FIRST_WRONG + REFLECTION, FIRST_RIGHT + REFLECTION + SECOND_WRONG]
    ids = [ids_of(processor, text) for text in texts]
    lenient = ReflectionRewards(processor, missing_second_is_wrong=False)
    assert lenient.effectiveness_reward(completion_ids=ids, answer=["7"] * 3) == [0.0, 0.0, -0.25]
    # the reason for the other rule: who spoils more than half of the right answers would better not answer twice
    spoils_two_of_three = [FIRST_RIGHT + REFLECTION + second for second in (SECOND_WRONG, SECOND_WRONG, SECOND_RIGHT)]
    ids = [ids_of(processor, text) for text in [*spoils_two_of_three, FIRST_RIGHT + REFLECTION]]
    for rewards, twice, once in ((lenient, -0.25, 0.0), (ReflectionRewards(processor), -0.25, -0.75)):
        *answered, missing = rewards.effectiveness_reward(completion_ids=ids, answer=["7"] * 4)
        assert (sum(answered), 3 * missing) == (twice, once)


def test_brevity_counts_sampled_ids(processor):
    """The same text in other tokens has another length: spelt letter by letter, a response is longer."""
    text = FIRST_RIGHT + REFLECTION + SECOND_RIGHT
    usual = ids_of(processor, text)
    spelt = [token for letter in text for token in ids_of(processor, letter)]
    assert len(spelt) == len(text) > len(usual)
    rewards = ReflectionRewards(processor)
    short, long = rewards.scores(completion_ids=[usual, spelt], answer=["7", "7"])
    assert (long.tokens, long.first_tokens, long.reflection_tokens) == (
        len(text),
        len(FIRST_RIGHT),
        len(REFLECTION.strip()),
    )
    assert (short.tokens, short.first_tokens) == (len(usual), len(ids_of(processor, FIRST_RIGHT)))
    # T_target = 2 L1, T_max - T_target = L1 / 2
    expected = [0.1 * math.exp(-2 * abs(s.tokens - 2 * s.first_tokens) / (s.first_tokens / 2)) for s in (short, long)]
    assert rewards.brevity_reward(completion_ids=[usual, spelt], answer=["7", "7"]) == pytest.approx(expected)


def test_without_a_first_answer_there_is_no_brevity(processor):
    ids = [ids_of(processor, "<think>3+4=7</think>"), ids_of(processor, "<reflection>7</reflection>")]
    assert ReflectionRewards(processor).brevity_reward(completion_ids=ids, answer=["7", "7"]) == [0.0, 0.0]


def test_an_unusable_gold_gives_no_reward_from_any_part(processor):
    ids = [ids_of(processor, FIRST_RIGHT), ids_of(processor, "7")]
    for values in paid(ReflectionRewards(processor), ids, ["", ""], id=["row 1", "row 2"]):
        assert values == [None, None]


def test_a_batch_is_graded_once(processor):
    class Counting(Grader):
        batches = 0

        def grade_batch(self, items):
            self.batches += 1
            return super().grade_batch(items)

    grader = Counting()
    rewards = ReflectionRewards(processor, grader)
    ids = [ids_of(processor, FIRST_RIGHT)]
    assert [values[0] for values in paid(rewards, ids, ["7"])][:2] == [0.5, 0.5]
    assert grader.batches == 1
    # with another gold the same ids are another batch
    assert [values[0] for values in paid(rewards, ids, ["8"])][:2] == [0.5, 0.0]
    assert grader.batches == 2


def test_what_is_logged(processor):
    texts = [FIRST_WRONG + REFLECTION + SECOND_RIGHT, FIRST_RIGHT, "<answer>7</answer> <refl", "7"]
    texts.append(FIRST_RIGHT + REFLECTION + SECOND_RIGHT)
    ids = [ids_of(processor, text) for text in texts]
    logged, extra = {}, {}
    ReflectionRewards(processor).scores(
        completion_ids=ids,
        answer=["7", "7", "7", "", "7"],
        log_metric=lambda name, value: logged.setdefault(name, []).append(value),
        log_extra=extra.__setitem__,
    )
    # the fourth row's gold is unusable: its form counts, its answers do not
    assert logged["response/complete"] == [1, 0, 0, 0, 1]
    assert logged["response/missing"] == [0, 1, 0, 1, 0]
    assert logged["response/cut"] == [0, 0, 1, 0, 0]
    assert logged["response/doubled"] == [0] * 5
    assert logged["acc_t1"] == [0, 1, 1, 1]
    assert logged["acc_t2"] == [1, 0, 0, 1]
    assert logged["reflected_share"] == [1, 0, 0, 1]
    assert logged["kept_share"] == [0, 0, 0, 1]
    assert logged["correction_share"] == [1, 0, 0, 0]
    assert logged["failed_share"] == [0, 0, 0, 0]
    assert logged["misjudgment_share"] == [0, 1, 1, 0]
    assert logged["length_response"] == [len(row) for row in ids]
    assert logged["length_incorrect"] == [len(ids[0])]  # by the first answer
    assert logged["length_correct"] == [len(ids[1]), len(ids[2]), len(ids[4])]
    assert logged["length_first"] == [
        len(ids_of(processor, FIRST_WRONG)),
        len(ids[1]),
        len(ids_of(processor, "<answer>7</answer>")),
        len(ids[1]),
    ]
    assert len(logged["length_reflection"]) == 2
    assert logged["grading/unusable_gold"] == [0.2]
    assert extra["first_correct"] == [False, True, True, None, True]
    assert extra["second_correct"] == [True, False, False, None, True]
    assert extra["problem"] == [
        "",
        "missing <reflection>",
        "cut in the middle of a tag: '<refl'",
        "missing <think> of the first solution",
        "",
    ]


def test_tokens_until_every_character(family, checkpoints):
    """Bisection finds what counting up finds, in every family's tokenizer, also amid letters of several bytes."""
    processor = load(checkpoints(family))[1]
    text = "<think>3+4=7 € 角</think> <answer>7</answer>"
    ids = ids_of(processor, text)
    assert processor.decode(ids) == text
    for position in range(len(text) + 1):
        counted = next(k for k in range(len(ids) + 1) if processor.decode(ids[:k]).startswith(text[:position]))
        assert tokens_until(processor, ids, text, position) == counted


def test_special_tokens_count_and_are_not_read(processor):
    """A special token in the middle is a sampled token, and no part of the text."""
    pad = processor.tokenizer.pad_token_id
    head, tail = ids_of(processor, "<think>3+4=7"), ids_of(processor, "</think> <answer>7</answer>")
    [score] = ReflectionRewards(processor).scores(completion_ids=[[*head, pad, *tail]], answer=["7"])
    assert score.response.has_solution_format
    assert score.first_tokens == len(head) + 1 + len(tail)


def test_the_grader_sees_the_answer_in_its_tags_and_the_columns(processor):
    class Recording(Grader):
        def grade_batch(self, items):
            self.items = items
            return super().grade_batch(items)

    grader = Recording()
    prompt = [{"role": "system", "content": "Reflect."}, {"role": "user", "content": "Which?"}]
    choices = {"A": "6", "B": "It may be seven: 7"}
    text = "<think>x</think> <answer>It may be seven: 7</answer>"
    [paid] = ReflectionRewards(processor, grader).accuracy_reward(
        completion_ids=[ids_of(processor, text)], answer=["B"], prompts=[prompt], choices=[choices], id=["row 1"]
    )
    assert paid == 0.5
    shared = {"gold": "B", "question": "Which?", "choices": choices, "id": "row 1"}
    assert grader.items == [
        {"completion": "<answer>It may be seven: 7</answer>", **shared},
        {"completion": "", **shared},
    ]


def test_a_template_that_opens_the_thought_belongs_to_the_response(processor):
    """Thinking models' templates write `<think>` into the prompt; lengths are still those of the sampled ids."""
    template = processor.chat_template
    processor.chat_template = template + "{% if add_generation_prompt %}<think>\n{% endif %}"
    rewards = ReflectionRewards(processor)
    ids = ids_of(processor, FIRST_RIGHT.removeprefix("<think>"))
    [score] = rewards.scores(completion_ids=[ids], answer=["7"])
    assert score.response.has_solution_format
    assert (score.tokens, score.first_tokens) == (len(ids), len(ids))
    processor.chat_template = template
    [score] = ReflectionRewards(processor).scores(completion_ids=[ids], answer=["7"])
    assert score.response.problem == "unopened </think>"


def test_a_tokenizer_that_loses_the_tags_is_refused(checkpoints):
    _, processor = load(checkpoints("qwen2_5_vl"))
    processor.tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    with pytest.raises(ValueError, match=r"reads .* as .*; add them as ordinary tokens"):
        check_tags_survive(processor)


def test_the_parts_work_in_a_plain_grpo_trainer(checkpoints, rows, tmp_path):
    path = checkpoints("qwen2_5_vl")
    _, processor = load(path)
    arguments = {"reward_funcs": ReflectionRewards(processor).functions, "processing_class": processor}
    make = maker(GRPOTrainer, GRPOConfig, arguments=arguments, **SMALL_RUN)
    trainer = make(path, tmp_path, rows[:1] * 8, max_steps=1, max_completion_length=60)
    written_by_hand(trainer, [FIRST_RIGHT + REFLECTION + SECOND_RIGHT, FIRST_RIGHT, "7", "7"] * 2)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["rewards/format_reward/mean"] == 0.25
    assert logged["rewards/reflection_format_reward/mean"] == 0.0625
    assert logged["response/complete"] == 0.25
