"""Which rows are sampled ahead, and where that is refused; tests/engines/test_vllm_ahead.py samples with a vLLM."""

import threading
from types import SimpleNamespace

import pytest
from datasets import Dataset
from support import SMALL_RUN, ParityGrader, adapo_trainer, drawn_rows
from trl.trainer.utils import RepeatSampler

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.training.ahead import in_background, why_not_ahead
from trl_mmreason.training.read_once import PlacesInOrder


def test_a_rollouts_rows_are_those_of_trls_sampler():
    """Two questions twice each, which come three times; of five questions one is left in each epoch."""
    sampler = RepeatSampler(range(5), mini_repeat_count=2, batch_size=2, repeat_count=3, seed=1)
    epochs = [list(sampler), list(sampler)]
    places = PlacesInOrder(RepeatSampler(range(5), 2, batch_size=2, repeat_count=3, seed=1), rows=4)
    assert [places.of(rollout) for rollout in range(4)] == [
        epochs[0][:4], epochs[0][12:16], epochs[1][:4], epochs[1][12:16],
    ]  # fmt: skip
    resumed = PlacesInOrder(RepeatSampler(range(5), 2, batch_size=2, repeat_count=3, seed=1), rows=4)
    assert resumed.of(3) == epochs[1][12:16]
    with pytest.raises(ValueError, match="rollout 1 was asked for after rollout 3"):
        resumed.of(1)


def test_rows_ahead_are_those_of_the_data_loader(checkpoints, tmp_path):
    """Two epochs of two rollouts, each of two micro-batches that are trained on twice."""
    settings = {"steps_per_generation": 2, "num_iterations": 2, "per_device_train_batch_size": 4}
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, drawn_rows(4), **settings)
    trainer.args.generate_ahead = True  # refused without a server
    loader = trainer.get_train_dataloader()
    given = [batch for _ in range(2) for batch in loader][::4]
    assert len(given) == 4
    assert [trainer.rows_of_rollout(rollout) for rollout in range(4)] == given
    assert given[:2] != given[2:]  # another order in the second epoch


def test_an_error_of_the_thread_is_raised_where_its_result_is_taken():
    def fail():
        raise ValueError(threading.current_thread().name)

    with pytest.raises(ValueError, match="generate_ahead"):
        in_background(fail).result()
    assert in_background(lambda: 7).result() == 7


def test_it_is_refused_without_a_server(checkpoints, tmp_path):
    args = AdaPOConfig(str(tmp_path), **SMALL_RUN, generate_ahead=True)
    with pytest.raises(ValueError, match="generate_ahead=True, but answers are not sampled by a vLLM server"):
        AdaPOTrainer(
            checkpoints("qwen2_5_vl"), args=args, train_dataset=Dataset.from_list(drawn_rows(8)), grader=ParityGrader()
        )


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"vllm_mode": "colocate"}, "not sampled by a vLLM server"),
        ({"args.vllm_importance_sampling_correction": False}, "nothing corrects for older weights"),
        ({"args.sampled_as_old": True}, "nothing corrects for older weights"),
        ({"tools": [len]}, "tools, environments or a rollout of your own"),
        ({"rollout_func": len}, "tools, environments or a rollout of your own"),
        ({"args.oversampling": 0.5}, "oversampling and refill_attempts ask other questions"),
        ({"args.refill_attempts": 1}, "oversampling and refill_attempts ask other questions"),
        ({"args.gradient_accumulation_steps": 3}, "a rollout of 8 micro-batches ends amid an update of 3"),
        ({"args.ignore_data_skip": True}, "with ignore_data_skip a resumed run has another order"),
        ({"train_dataset": iter([])}, "the rows are a stream"),
        ({}, None),
    ],
)
def test_settings_that_do_not_go_together_are_refused(other, message):
    args = {
        "oversampling": 0.0,
        "refill_attempts": 0,
        "steps_per_generation": 4,
        "gradient_accumulation_steps": 4,
        "ignore_data_skip": False,
        "vllm_importance_sampling_correction": True,
        "sampled_as_old": False,
    }
    own = {"use_vllm": True, "vllm_mode": "server", "tools": None, "environment_factories": None, "num_iterations": 2}
    own |= {"rollout_func": None, "train_dataset": Dataset.from_list(drawn_rows(2))}
    args |= {name.removeprefix("args."): value for name, value in other.items() if name.startswith("args.")}
    own |= {name: value for name, value in other.items() if not name.startswith("args.")}
    trainer = SimpleNamespace(args=SimpleNamespace(**args), **own)
    reason = why_not_ahead(trainer)
    assert reason is None if message is None else message in reason
