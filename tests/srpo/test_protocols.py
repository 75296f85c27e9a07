"""Responses in SRPO's format, read and graded: strings put into a policy's mouth, and a real tiny policy."""

import pytest
from datasets import Dataset
from support import drawn_rows, ids_of, load

from trl_mmreason.evaluation.metrics import metric_of
from trl_mmreason.evaluation.results import compare_results, summarise
from trl_mmreason.evaluation.runner import evaluate
from trl_mmreason.generation import Sample, SamplingParams
from trl_mmreason.generation.engine import UnsuitableEngine
from trl_mmreason.generation.protocols import last_verdict
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.srpo.protocols import FirstSolution, Reflection

SOLUTION = "<think>1+1=2</think> <answer>{}</answer>"
CHECK = "<reflection>I look again.</reflection>"


class Says:
    """An engine with a real processor that writes these texts in turn."""

    settings = {"kind": "says"}

    def __init__(self, processor, texts, **chat_template_kwargs):
        self.processing_class, self.texts = processor, texts
        self.chat_template_kwargs = chat_template_kwargs

    def sample(self, requests, sampling_params):
        end = self.processing_class.tokenizer.eos_token_id
        return [
            [Sample(text, "stop", [*ids_of(self.processing_class, text), end])]
            for _, text in zip(requests, self.texts, strict=True)
        ]


def read(processor, texts, protocol=None, golds=None, **chat_template_kwargs):
    """The samples of a policy that writes `texts`; each gold answer is 2."""
    golds = golds or ["2"] * len(texts)
    rows = [{**row, "answer": gold} for row, gold in zip(drawn_rows(len(texts)), golds, strict=True)]
    return evaluate(
        Dataset.from_list(rows), Says(processor, texts, **chat_template_kwargs), None, protocol or Reflection()
    )


def transition(sample):
    return f"{sample['turns'][0]['correct']:d}→{last_verdict(sample, 2):d}"


def test_a_response_is_cut_behind_its_first_answer_and_graded_twice(processor):
    texts = [
        f"{SOLUTION.format(2)} {CHECK} {SOLUTION.format(2)}",
        f"{SOLUTION.format(3)} {CHECK} {SOLUTION.format(2)}",
        f"{SOLUTION.format(3)} {CHECK} {SOLUTION.format(4)}",
        f"{SOLUTION.format(2)} {CHECK} {SOLUTION.format(3)}",
        SOLUTION.format(2),
        "<think>1+1=2",
        f"{CHECK} {SOLUTION.format(2)}",
    ]
    found = [sample for (sample,) in read(processor, texts).samples]
    assert [transition(one) for one in found] == ["1→1", "0→1", "0→0", "1→0", "1→0", "0→0", "1→0"]
    firsts = [SOLUTION.format(x) for x in (2, 3, 3, 2, 2)] + ["<think>1+1=2", texts[6]]
    assert [one["turns"][0]["text"] for one in found] == firsts
    seconds = [f"{CHECK} {SOLUTION.format(x)}" for x in (2, 2, 4, 3)]
    assert [[turn["text"] for turn in one["turns"][1:]] for one in found] == [*([text] for text in seconds), [], [], []]
    measures = [one["measures"] for one in found]
    # Eq. 8; without a reflection behind a first answer there is no effect
    assert [one["effectiveness"] for one in measures] == [0.25, 0.5, 0.0, -0.25, 0.0, 0.0, 0.0]
    assert [one.get("problem") for one in found[:5]] == [None, None, None, None, "missing <reflection>"]
    assert found[5]["problem"].startswith("unclosed <think>")
    assert [one["tokens"] for one in found] == [len(ids_of(processor, text)) + 1 for text in texts]
    assert [one["reflection_tokens"] is not None for one in measures] == [True] * 4 + [False] * 3
    # a token may hold the space before a tag too
    assert abs(measures[0]["reflection_tokens"] - len(ids_of(processor, CHECK))) <= 1


def test_a_second_answer_that_is_missing_is_wrong_or_earns_nothing(processor):
    texts = [f"{SOLUTION.format(2)} {CHECK}", f"{SOLUTION.format(3)} {CHECK}"]
    for wrong, effects in ((True, [-0.25, 0.0]), (False, [0.0, 0.0])):
        found = [sample for (sample,) in read(processor, texts, Reflection(missing_second_is_wrong=wrong)).samples]
        assert [one["measures"]["effectiveness"] for one in found] == effects
        assert [transition(one) for one in found] == ["1→0", "0→0"]


@pytest.mark.parametrize("verdicts", [(None, True), (True, None)])
def test_an_answer_that_a_judge_left_open_has_no_effect(verdicts):
    """A judge's reply about one of the two answers could not be read."""
    read = {"reflects": True, "solves_again": True, "reflection_tokens": 7}
    sample = {"turns": [{"correct": verdict} for verdict in verdicts], "extra": read}
    assert Reflection().measures(sample) == {"reflection_tokens": 7}


def test_a_thought_that_the_template_opened_belongs_to_the_response(processor):
    processor.chat_template += "{% if add_generation_prompt and think %}<think>\n{% endif %}"
    whole = f"{SOLUTION.format(2)} {CHECK} {SOLUTION.format(2)}"
    texts = [whole.removeprefix("<think>")]
    [[found]] = read(processor, texts, think=True).samples
    assert [turn["text"] for turn in found["turns"]] == [SOLUTION.format(2), f"{CHECK} {SOLUTION.format(2)}"]
    assert transition(found) == "1→1"
    [[first]] = read(processor, texts, FirstSolution(), think=True).samples
    assert [(turn["text"], turn["correct"]) for turn in first["turns"]] == [(whole, True)]
    [[plain]] = read(processor, texts).samples
    assert plain["problem"] == "unopened </think>"


def test_rows_without_a_usable_gold_answer_count_nowhere(processor):
    results = summarise(read(processor, [SOLUTION.format(2)] * 2, golds=["", "2"]))
    assert len(results.unusable) == 1
    assert results.metrics["acc_t1"].value == 1.0


def test_a_random_policy_is_asked_with_the_system_prompt_and_gets_nothing_right(checkpoints, monkeypatch):
    model, processor = load(checkpoints("qwen2_5_vl"))
    rows, asked, apply = drawn_rows(4), [], processor.apply_chat_template

    def spy(conversation, **settings):
        asked.append("Use the tags." in str(conversation))
        return apply(conversation, **settings)

    monkeypatch.setattr(processor, "apply_chat_template", spy)
    for prompt in (None, "Use the tags."):
        asked.clear()
        asking = {"batch_size": 3, "system_prompt": prompt, "sampling_params": SamplingParams(5, temperature=0.0)}
        engine = TransformersEngine(model, processor)
        found = evaluate(Dataset.from_list(rows), engine, None, Reflection(), **asking)
        assert [transition(sample) for (sample,) in found.samples] == ["0→0"] * 4
        assert all(1 <= sample["tokens"] <= 5 for (sample,) in found.samples)
        assert any(asked) == (prompt is not None)
        assert found.rows[0]["prompt"] == rows[0]["prompt"]


def test_metrics_of_four_responses(processor):
    # 1→1, 0→1, 0→0, 1→0; the third does not reflect, so that the mean reflection is that of three
    pairs = [(2, 2), (3, 2), (None, None), (2, 3)]
    texts = [
        SOLUTION.format(3) if first is None else f"{SOLUTION.format(first)} {CHECK} {SOLUTION.format(second)}"
        for first, second in pairs
    ]
    samples = read(processor, texts)
    found = {name: estimate.value for name, estimate in summarise(samples).metrics.items()}
    quarters = ("kept_share", "correction_share", "failed_share", "misjudgment_share")
    assert {name: found[name] for name in quarters} == dict.fromkeys(quarters, 0.25)
    assert found["acc_t1"] == found["acc_t2"] == 0.5
    assert found["effectiveness"] == (0.25 + 0.5 + 0.0 - 0.25) / 4
    measures = [sample["measures"] for (sample,) in samples.samples]
    assert found["tokens"] == sum(sample["tokens"] for (sample,) in samples.samples) / 4
    assert found["reflection_tokens"] == sum(one["reflection_tokens"] or 0 for one in measures) / 3
    assert set(Reflection.metrics) <= found.keys()
    assert metric_of("reflection_tokens").label == "tokens of a reflection"


def test_before_and_after_are_compared_question_by_question(processor):
    wrong = f"{SOLUTION.format(3)} {CHECK} {SOLUTION.format(3)}"
    right = f"{SOLUTION.format(3)} {CHECK} {SOLUTION.format(2)}"
    before, after = (summarise(read(processor, [text] * 2)) for text in (wrong, right))
    rows = compare_results(before, after)
    assert rows["correction_share"].change.value == rows["acc_t2"].change.value == 1.0
    assert rows["effectiveness"].after.interval == (0.5, 0.5)
    assert rows["tokens"].change.value == 0.0


def test_a_server_counts_tokens_alone():
    """Its samples have no ids, so that nobody knows how long the reflection is."""

    class Server:
        settings = {"kind": "server"}

        def sample(self, requests, sampling_params):
            text = f"{SOLUTION.format(2)} {CHECK} {SOLUTION.format(2)}"
            return [[Sample(text, "stop", counted_tokens=40)] for _ in requests]

    row = {"prompt": [{"role": "user", "content": "1+1?"}], "answer": "2"}
    [[found]] = evaluate(Dataset.from_list([row]), Server(), None, Reflection()).samples
    assert found["measures"] == {"effectiveness": 0.25, "reflection_tokens": None}


def test_a_tokenizer_that_loses_the_tags_ends_the_run(processor):
    processor.tokenizer.add_tokens(["<think>"], special_tokens=True)
    with pytest.raises(UnsuitableEngine, match="so no response could be parsed"):
        read(processor, [SOLUTION.format(2)])
