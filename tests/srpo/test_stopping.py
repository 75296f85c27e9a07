"""The end of SRPO's cold start; examples/srpo.py trains until then in tests/project/test_examples.py."""

import pytest
from datasets import Dataset
from support import drawn_rows, ids_of, load

from trl_mmreason import SRPOConfig
from trl_mmreason.generation import Failure, Sample, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.srpo.stopping import StopWhenReflecting, have_second_think, learnt

RESPONSE = "<think>1+1=2</think> <answer>{}</answer>"


def test_a_cold_start_is_measured_on_what_is_sampled_as_in_training(checkpoints, monkeypatch, tmp_path):
    model, processor = load(checkpoints("qwen2_5_vl"))
    check = "<reflection>I look again.</reflection>"
    pairs = [(2, 3), (3, 2), (2, 2)]  # of four responses one is corrected, one spoilt, and one has no second answer
    whole = [f"{RESPONSE.format(first)} {check} {RESPONSE.format(second)}" for first, second in pairs]
    written = [Sample(text, "stop", ids_of(processor, text)) for text in (*whole, RESPONSE.format(2))]
    asked = []

    def spy(engine, requests, sampling_params):
        asked.append((len(requests), [request.messages[0]["content"] for request in requests], sampling_params))
        return [[sample] for sample in written]

    monkeypatch.setattr(TransformersEngine, "sample", spy)
    args = SRPOConfig(
        str(tmp_path),
        use_cpu=True,
        bf16=False,
        reflection_prompt="Reflect.",
        max_completion_length=77,
        temperature=0.9,
        top_p=0.8,
        per_device_eval_batch_size=8,
    )
    rows = Dataset.from_list([{**row, "answer": "2"} for row in drawn_rows(4)])
    found = learnt(model, processor, rows, args)
    assert found == (0.75, -0.25)
    assert str(found) == "75% of the sampled responses complete, acc@t2 - acc@t1 -25 points"
    assert asked == [(4, ["Reflect."] * 4, SamplingParams(77, temperature=0.9, top_p=0.8))]


def test_settings_that_the_measure_does_not_know_are_named(checkpoints, tmp_path, caplog):
    _, processor = load(checkpoints("qwen2_5_vl"))
    args = SRPOConfig(
        str(tmp_path), use_cpu=True, bf16=False, repetition_penalty=1.1, generation_kwargs={"typical_p": 0.9}
    )
    StopWhenReflecting(processor, Dataset.from_list(drawn_rows(1)), args, complete_share=0.9)
    assert "repetition_penalty, typical_p of reinforcement have no effect there" in caplog.text


def test_a_policy_in_pieces_is_refused_before_training(checkpoints, tmp_path):
    """No process could sample from it by itself, so that they would wait for each other."""
    model, processor = load(checkpoints("qwen2_5_vl"))
    args = SRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    callback = StopWhenReflecting(processor, Dataset.from_list(drawn_rows(1)), args, complete_share=0.9)
    callback.on_train_begin(args, None, None, model=model)
    model.lm_head.weight.ds_id = 0  # as ZeRO-3 marks what it has shared out
    with pytest.raises(ValueError, match="under ZeRO-3 or FSDP no process has the whole policy"):
        callback.on_train_begin(args, None, None, model=model)


def test_a_response_that_failed_is_not_complete(checkpoints, monkeypatch, tmp_path):
    policy = load(checkpoints("qwen2_5_vl"))
    whole = f"{RESPONSE.format(3)} <reflection>No.</reflection> {RESPONSE.format(2)}"
    said = [[Sample(whole, "stop", ids_of(policy[1], whole))], Failure("torn")]
    monkeypatch.setattr(TransformersEngine, "sample", lambda engine, requests, sampling_params: said)
    rows = Dataset.from_list([{**row, "answer": "2"} for row in drawn_rows(2)])
    assert learnt(*policy, rows, SRPOConfig(str(tmp_path), use_cpu=True, bf16=False)) == (0.5, 0.5)


def test_a_second_think_is_asked_for_where_the_rows_have_one(checkpoints, monkeypatch, tmp_path):
    """Rows of `mmreason reflect` have none by default, as in the paper's template of supervised training (B.3)."""
    policy = load(checkpoints("qwen2_5_vl"))
    short = f"{RESPONSE.format(3)} <reflection>No.</reflection> <answer>2</answer>"
    long = f"{RESPONSE.format(3)} <reflection>No.</reflection> {RESPONSE.format(2)}"
    stray = f"{RESPONSE.format(3)} <reflection>No.</reflection> So: <answer>2</answer>"
    texts = [short, long, stray, RESPONSE.format(2)]
    said = [[Sample(text, "stop", ids_of(policy[1], text))] for text in texts]
    monkeypatch.setattr(TransformersEngine, "sample", lambda engine, requests, sampling_params: said)
    rows = Dataset.from_list([{**row, "answer": "2"} for row in drawn_rows(4)])
    args = SRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    taught = [Dataset.from_dict({"completion": completions}) for completions in ([short, short], [short, long])]
    found = [learnt(*policy, rows, args, have_second_think(each)) for each in taught]
    assert found == [(0.5, 0.5), (0.25, 0.5)]  # three of four are corrected, the last has no second answer: -1
