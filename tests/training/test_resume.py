"""A resumed run is the run that was not interrupted: the same losses, the same final weights, for every family."""

import os
import signal
from itertools import count

import pyarrow.parquet as pq
import pytest
import torch
from peft import LoraConfig
from processes import begin
from safetensors.torch import load_file, save_file
from support import adapo_trainer, assert_weights, drawn_rows, full_but, load, recorded_batches, weights_of
from transformers import TrainerCallback
from trl import GRPOTrainer

from trl_mmreason.training.checkpoint import CheckpointError, restore_weights
from trl_mmreason.training.padding import score_by_length
from trl_mmreason.training.resuming import FILES

STEPS, SAVED = 4, 2


def trainer_for(path, folder, rows, *, lora=False, **settings):
    peft_config = LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"]) if lora else None
    run = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": SAVED, "beta": 0.05}
    run |= {"filter_zero_advantage": False, "filter_truncated": False}
    return adapo_trainer(path, folder, rows, trainer_kwargs={"peft_config": peft_config}, **{**run, **settings})


def outcome(trainer, **kwargs):
    trainer.train(**kwargs)
    losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
    return losses, {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}


def assert_same(whole, resumed):
    losses, weights = whole
    again, final = resumed
    for step in range(SAVED + 1, STEPS + 1):
        assert again[step] == pytest.approx(losses[step], abs=1e-6)
    assert_weights(final, weights, atol=1e-6)


@pytest.mark.parametrize("lora", full_but(False, [False, True]), ids=["full", "lora"])
def test_resumed_equals_uninterrupted(family, checkpoints, rows, tmp_path, lora):
    path = checkpoints(family)
    whole = outcome(trainer_for(path, tmp_path, rows, lora=lora))
    resumed = trainer_for(path, tmp_path, rows, lora=lora)
    start = weights_of(resumed.model)
    resumed = outcome(resumed, resume_from_checkpoint=str(tmp_path / f"checkpoint-{SAVED}"))
    assert_same(whole, resumed)
    assert any(not torch.equal(start[name], weight) for name, weight in whole[1].items())  # something was learnt


def test_a_reference_that_moves_goes_on_from_where_it_was(checkpoints, rows, tmp_path, caplog):
    """It is half-way to the policy after the first step, and the KL term is 5 times as large as in other tests."""
    path, moving = checkpoints("qwen2_5_vl"), {"sync_ref_model": True, "ref_model_sync_steps": 1, "beta": 0.25}
    moving["ref_model_mixup_alpha"] = 0.5
    whole = outcome(trainer_for(path, tmp_path, rows, **moving))
    checkpoint = tmp_path / f"checkpoint-{SAVED}"
    for file in ("reference.pt", FILES):
        os.replace(checkpoint / file, tmp_path / file)
    losses, _ = outcome(trainer_for(path, tmp_path, rows, **moving), resume_from_checkpoint=str(checkpoint))
    assert any("the reference of sync_ref_model is the initial policy again" in each for each in caplog.messages)
    assert losses[STEPS] != pytest.approx(whole[0][STEPS], abs=1e-6)
    for file in ("reference.pt", FILES):
        os.replace(tmp_path / file, checkpoint / file)
    resumed = trainer_for(path, tmp_path, rows, **moving)
    assert_same(whole, outcome(resumed, resume_from_checkpoint=str(checkpoint)))


def test_a_later_epoch_goes_on_in_its_own_order(checkpoints, rows, tmp_path):
    """Three rollouts of two questions make an epoch; the checkpoint lies in the second one."""
    few, path = rows[:6], checkpoints("qwen2_5_vl")

    def asked_by(trainer, **kwargs):
        asked, prepare = [], trainer._generate_and_score_completions

        def note(inputs):
            asked.append([row["answer"] for row in inputs[:: trainer.num_generations]])
            return prepare(inputs)

        trainer._generate_and_score_completions = note
        trainer.train(**kwargs)
        return asked

    whole = asked_by(trainer_for(path, tmp_path, few, max_steps=6, save_steps=4))
    resumed = trainer_for(path, tmp_path, few, max_steps=6, save_steps=4)
    assert asked_by(resumed, resume_from_checkpoint=str(tmp_path / "checkpoint-4")) == whole[4:]
    assert whole[:3] != whole[3:]


@pytest.mark.parametrize(
    "settings", full_but({"num_iterations": 4}, [{"num_iterations": 4}, {"steps_per_generation": 4}])
)
def test_a_checkpoint_amid_rollouts_keeps_the_rest_of_them(checkpoints, rows, tmp_path, settings):
    """Four optimizer steps share one generation; the checkpoint lies in the middle of them."""
    path = checkpoints("internvl")
    settings = {**settings, "per_device_train_batch_size": 4, "seed": 1}  # a seed by which the group teaches
    if "num_iterations" in settings:
        settings["generation_batch_size"] = 4
    whole = outcome(trainer_for(path, tmp_path, rows, **settings))
    resumed = outcome(
        trainer_for(path, tmp_path, rows, **settings), resume_from_checkpoint=str(tmp_path / f"checkpoint-{SAVED}")
    )
    assert_same(whole, resumed)


def test_completions_that_are_logged_stay_if_a_run_resumes_amid_their_rollout(checkpoints, rows, tmp_path):
    """It does not know them, and would write a table without a line in the place of theirs."""
    settings = {"num_iterations": 4, "log_completions": True, "max_steps": SAVED + 1}
    path, table = checkpoints("qwen2_5_vl"), tmp_path / f"completions/completions_0000{SAVED + 1}.parquet"
    trainer_for(path, tmp_path, rows, **settings).train()
    logged = pq.read_table(table)
    assert len(logged) == 8
    trainer_for(path, tmp_path, rows, **settings).train(str(tmp_path / f"checkpoint-{SAVED}"))
    assert pq.read_table(table) == logged


def test_an_interrupted_training_leaves_nothing_to_the_next(checkpoints, rows, tmp_path, monkeypatch):
    """Neither its rollout, which was sampled by other weights, nor which of its rows were scored."""
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rows, num_iterations=3, max_steps=2)
    batches, losses, compute_loss = recorded_batches(trainer), count(), GRPOTrainer.compute_loss

    def interrupted(*args, **kwargs):
        if next(losses) == 1:
            raise KeyboardInterrupt
        return compute_loss(*args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "compute_loss", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert (trainer._score, trainer._fields) == (score_by_length, None)
    trainer.train()
    assert len(batches) == 2


def amid_rollouts(path, folder, rows, **settings):
    return trainer_for(path, folder, rows, num_iterations=4, **settings)


def test_rollouts_of_an_earlier_run_in_the_folder_are_not_taken(checkpoints, rows, tmp_path):
    path = checkpoints("internvl")
    amid_rollouts(path, tmp_path, rows, max_steps=SAVED).train()
    file = tmp_path / f"checkpoint-{SAVED}" / "rollouts_0_of_1.pt"
    assert file.exists()
    trainer_for(path, tmp_path, rows, max_steps=SAVED).train()  # whose checkpoint lies between rollouts
    assert not file.exists()


@pytest.mark.full
def test_rollouts_of_another_number_of_processes_are_refused(checkpoints, rows, tmp_path):
    path = checkpoints("internvl")
    amid_rollouts(path, tmp_path, rows, max_steps=SAVED).train()
    folder = tmp_path / f"checkpoint-{SAVED}"
    (folder / FILES).unlink()
    (folder / "rollouts_0_of_1.pt").rename(folder / "rollouts_0_of_2.pt")
    with pytest.raises(CheckpointError, match="rollouts_0_of_2.pt, this run needs rollouts_0_of_1.pt"):
        amid_rollouts(path, tmp_path, rows).train(resume_from_checkpoint=str(folder))


def test_rollouts_of_another_size_are_refused(checkpoints, rows, tmp_path):
    path = checkpoints("internvl")
    amid_rollouts(path, tmp_path, rows, max_steps=SAVED).train()
    other = amid_rollouts(path, tmp_path, rows, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    with pytest.raises(
        CheckpointError, match="this run has 2 and 4. Resume with the same, or from a checkpoint between"
    ):
        other.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{SAVED}"))


def test_weights_of_mixed_types_come_back_exactly(checkpoints, rows, tmp_path):
    """A bfloat16 model with a head in float32: no weight may be rounded on its way."""
    model, _ = load(checkpoints("qwen2_5_vl"))
    model.bfloat16()
    head = model.get_output_embeddings()
    head.float()
    with torch.no_grad():
        head.weight.add_(1e-4)  # a value that bfloat16 cannot hold
    expected = head.weight.detach().clone()
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        head.weight.zero_()
    restore_weights(model, tmp_path)
    torch.testing.assert_close(head.weight, expected, atol=0, rtol=0)
    assert model.get_input_embeddings().weight.dtype == torch.bfloat16


class KillAfter(TrainerCallback):
    """Ends the process at once, as `kill -9` does."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train_until_killed(path, folder):
    trainer = trainer_for(path, folder, drawn_rows(24))
    trainer.add_callback(KillAfter(SAVED + 1))
    trainer.train()


@pytest.mark.full
def test_a_killed_run_resumes_from_its_checkpoint(checkpoints, rows, tmp_path):
    path = checkpoints("qwen2_5_vl")
    whole = outcome(trainer_for(path, tmp_path / "whole", rows))
    killed = begin(train_until_killed, path, tmp_path / "killed")
    killed.join(600)
    assert killed.exitcode == -signal.SIGKILL
    resumed = trainer_for(path, tmp_path / "killed", rows)
    assert_same(whole, outcome(resumed, resume_from_checkpoint=True))


@pytest.mark.full
def test_the_best_model_is_really_loaded(checkpoints, rows, tmp_path):
    path = checkpoints("qwen2_vl")
    trainer = trainer_for(path, tmp_path, rows)
    trainer.train()
    trainer.state.best_model_checkpoint = str(tmp_path / f"checkpoint-{SAVED}")
    trainer._load_best_model()
    saved, _ = load(trainer.state.best_model_checkpoint)
    assert_weights(trainer.model, saved)


def test_vllm_gets_weights_that_changed_within_a_step(checkpoints, rows, tmp_path):
    """TRL sends weights when the step is another one, by `_last_loaded_step`."""
    trainer = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rows, max_steps=1, save_steps=1)
    trainer._last_loaded_step = 0  # as after an earlier training of one step
    trainer.train()
    assert trainer._last_loaded_step != 0
    trainer._last_loaded_step = 1  # as after an evaluation at the end
    trainer.state.best_model_checkpoint = str(tmp_path / "checkpoint-1")
    trainer._load_best_model()
    assert trainer._last_loaded_step != trainer.state.global_step == 1


def damaged(folder, file_name, change):
    file = folder / f"checkpoint-{SAVED}" / file_name
    (file.parent / FILES).unlink()
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return str(file.parent)


@pytest.mark.full
def test_an_adapter_in_bfloat16_stays_so(checkpoints, rows, tmp_path):
    """TRL holds a QLoRA's adapter in bfloat16, and PEFT would load it as float32: then the run differs."""

    def trainer():
        made = trainer_for(checkpoints("qwen2_5_vl"), tmp_path, rows, lora=True)
        for weight in made.model.parameters():
            if weight.requires_grad:
                weight.data = weight.data.to(torch.bfloat16)
        return made

    whole = outcome(trainer())
    resumed = outcome(trainer(), resume_from_checkpoint=str(tmp_path / f"checkpoint-{SAVED}"))
    assert {weight.dtype for weight in resumed[1].values()} == {torch.bfloat16}
    assert_same(whole, resumed)


def test_a_checkpoint_without_all_weights_is_refused(checkpoints, rows, tmp_path):
    path = checkpoints("qwen2_5_vl")
    trainer_for(path, tmp_path, rows, max_steps=SAVED).train()
    checkpoint = damaged(tmp_path, "model.safetensors", lambda tensors: tensors.pop(sorted(tensors)[0]))
    with pytest.raises(CheckpointError, match="missing_keys"):
        trainer_for(path, tmp_path, rows).train(resume_from_checkpoint=checkpoint)


@pytest.mark.full
def test_an_adapter_that_does_not_fit_is_refused(checkpoints, rows, tmp_path):
    path = checkpoints("qwen2_5_vl")
    trainer_for(path, tmp_path, rows, lora=True, max_steps=SAVED).train()

    def rename(tensors):
        name = sorted(tensors)[0]
        tensors["elsewhere." + name] = tensors.pop(name)

    checkpoint = damaged(tmp_path, "adapter_model.safetensors", rename)
    with pytest.raises(CheckpointError, match="adapter tensors"):
        trainer_for(path, tmp_path, rows, lora=True).train(resume_from_checkpoint=checkpoint)
