"""Runs that end on the way, by a kill, a signal or a full disk, and what is in their folder: the next start resumes."""

import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from every_trainer import DPO, TRAINERS, make, rows_of, saved_base
from peft import LoHaConfig, LoraConfig
from processes import begin, outcomes
from support import adapo_trainer, assert_weights, drawn_rows, full_but, weights_of
from transformers import TrainerCallback
from trl import ModelConfig

from trl_mmreason.data.folders import FolderInUse, lock_folder, unlock_folder
from trl_mmreason.jobs.store import SettingsChanged
from trl_mmreason.scripts.refusals import WrongArgument
from trl_mmreason.scripts.single_stage import (
    CompletionArguments,
    claim_output_dir,
    finished_state,
    train_and_save,
    train_once,
)
from trl_mmreason.training import checkpoint as checkpoint_module
from trl_mmreason.training.checkpoint import CheckpointError
from trl_mmreason.training.interruption import STATUS, TrainingInterrupted, end_with_checkpoint
from trl_mmreason.training.resuming import (
    FILES,
    UNFINISHED,
    NoCheckpoint,
    checkpoint_fault,
    model_fault,
    newest_checkpoint,
    resolve_checkpoint,
)

SFT = "ReflectionSFTTrainer"
EVERY_STEP = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return saved_base("qwen2_5_vl", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def run(base, tmp_path_factory):
    """The folder of three steps, with a checkpoint behind each, and the weights at the end."""
    folder = tmp_path_factory.mktemp("run")
    trainer = make(SFT, base, folder, **EVERY_STEP)
    trainer.train()
    return folder, weights_of(trainer.model)


@pytest.fixture
def copied(run, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(run[0], folder)
    (folder / "checkpoint-3" / "trainer_state.json").unlink()
    return folder


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("trl_mmreason")]


def fails(*_, **__):
    raise AssertionError("a step was trained")


class At(TrainerCallback):
    """Does something before a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            self.action()


class EndAfter(TrainerCallback):
    """Ends training on purpose."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


# ------------------------------------------------------------------------------------------------------------- Ctrl-C


@pytest.mark.parametrize("step", [1, 3])
def test_ctrl_c_says_what_was_saved(step, base, tmp_path):
    def press():
        raise KeyboardInterrupt

    trainer = make(SFT, base, tmp_path, **{**EVERY_STEP, "save_steps": 2})
    trainer.add_callback(At(step, press))
    with pytest.raises(KeyboardInterrupt) as interrupted:
        trainer.train()
    since = f"since {tmp_path}/checkpoint-2" if step == 3 else f"yet: {tmp_path} has no checkpoint"
    assert str(interrupted.value) == f"training stopped at step {step - 1} of 3; nothing is saved {since}"


# ------------------------------------------------------------------------------------------------------- finished runs


def test_a_part_of_an_epoch_is_not_taken_for_a_longer_one(base, tmp_path):
    """16 rows in 4 steps an epoch: a quarter is 1 step, half of it 2, and 2 steps are not a whole epoch."""
    epochs = {"per_device_train_batch_size": 4, "save_strategy": "no", "resume_from_checkpoint": "auto"}

    def steps(**settings):
        trainer = make(SFT, base, tmp_path, **{**epochs, **settings})
        if finished_state(trainer.args) is None:
            train_and_save(trainer)
            return trainer.state.global_step
        return "finished"

    quarter = {"max_steps": -1, "num_train_epochs": 0.25}
    assert steps(**quarter) == 1
    assert steps(**quarter) == "finished"
    assert steps(max_steps=-1, num_train_epochs=0.5) == 2
    assert steps(max_steps=2) == "finished"
    assert steps(max_steps=3) == 3
    assert steps(max_steps=-1, num_train_epochs=1.0) == 4
    assert steps(max_steps=-1, num_train_epochs=1) == "finished"


@pytest.mark.parametrize("name", full_but(SFT, TRAINERS))
def test_a_finished_run_trains_no_step_more(name, base, tmp_path, caplog):
    """Three steps are no whole epoch: `Trainer` alone would take a fourth."""
    trainer = make(name, base, tmp_path, **{**EVERY_STEP, "save_steps": 3})
    trainer.train()
    expected = weights_of(trainer.model)
    if name == DPO:
        shutil.rmtree(tmp_path / "round-1" / "policy")  # as if the run had been killed before it was saved
    again = make(name, base, tmp_path, **{**EVERY_STEP, "save_steps": 3})
    again.training_step = fails
    caplog.clear()
    again.train(resume_from_checkpoint="auto")
    assert again.state.global_step == 3
    assert_weights(again.model, expected)
    assert any("is already finished: 3 of 3 steps" in warning for warning in warnings_of(caplog))


def test_training_that_a_callback_ended_is_finished_and_more_steps_train_on(base, tmp_path, caplog):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    trainer = make(SFT, base, tmp_path, **settings)
    trainer.add_callback(EndAfter(2))
    train_and_save(trainer)
    again = make(SFT, base, tmp_path, **settings, resume_from_checkpoint="auto")
    claim_output_dir(CompletionArguments("rows"), again.args, ModelConfig("policy"))
    again.training_step = fails
    train_and_save(again)
    assert f"{tmp_path} is already finished: 2 of 4 steps" in warnings_of(caplog)[-1]
    assert_weights(again.model, trainer.model)
    assert again.state.log_history[:2] == trainer.state.log_history[:2]
    more = make(SFT, base, tmp_path, **{**settings, "max_steps": 3}, resume_from_checkpoint="auto")
    assert finished_state(more.args) is None
    train_and_save(more)
    assert more.state.global_step == 3
    unlock_folder(tmp_path)


# --------------------------------------------------------------------------------------------------- which is complete


def half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def in_shards(folder):
    """The weights in several files, of which one is missing."""
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    assert checkpoint_fault(folder) is None
    sorted(folder.glob("model-*.safetensors"))[1].unlink()


DAMAGES = {
    "model.safetensors is cut off": lambda folder: half(folder / "model.safetensors"),
    "it holds no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "model-00002-of-000": in_shards,
    "optimizer.pt is cut off": lambda folder: half(folder / "optimizer.pt"),
    "scheduler.pt is cut off": lambda folder: half(folder / "scheduler.pt"),
    "rng_state.pth is cut off": lambda folder: half(folder / "rng_state.pth"),
    "training_args.bin is cut off": lambda folder: (folder / "training_args.bin").write_bytes(b""),
    "trainer_state.json is cut off": lambda folder: half(folder / "trainer_state.json"),
    "trainer_state.json, which is written last, is missing": lambda folder: (folder / "trainer_state.json").unlink(),
    "checkpoint-is-incomplete.txt is there": lambda folder: (folder / "checkpoint-is-incomplete.txt").touch(),
    "mp_rank_00_model_states.pt is cut off": lambda folder: [
        (folder / "global_step2").mkdir(),
        (folder / "global_step2" / "mp_rank_00_model_states.pt").touch(),
    ],
    ".metadata is missing": lambda folder: [
        (folder / "optimizer_0").mkdir(),
        (folder / "optimizer_0" / "__0_0.distcp").touch(),
    ],
}


@pytest.mark.parametrize("fault", DAMAGES)
def test_a_checkpoint_counts_only_when_it_is_complete(fault, copied):
    """As earlier versions and plain TRL leave them; the third is incomplete already."""
    assert newest_checkpoint(copied)[0] == copied / "checkpoint-2"
    for number in (2, 3):
        (copied / f"checkpoint-{number}" / FILES).unlink()
    DAMAGES[fault](copied / "checkpoint-2")
    newest, (third, second) = newest_checkpoint(copied)
    assert newest == copied / "checkpoint-1"
    assert third.startswith(f"{copied / 'checkpoint-3'}: trainer_state.json, which is written last, is missing")
    assert second.startswith(f"{copied / 'checkpoint-2'}: ")
    assert fault in second


def garble(path):
    path.write_bytes(path.read_bytes()[::-1])


@pytest.mark.parametrize(
    ("damage", "name", "fault"),
    [
        *((Path.unlink, name, "is missing") for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")),
        *((half, name, "is cut off, or was changed") for name in ("config.json", "model.safetensors")),
        (garble, "scheduler.pt", "is cut off, or was changed"),
        (half, FILES, "is cut off"),
    ],
)
def test_a_checkpoint_of_this_package_has_every_file_as_it_was_written(damage, name, fault, copied):
    assert newest_checkpoint(copied)[0] == copied / "checkpoint-2"
    damage(copied / "checkpoint-2" / name)
    newest, (_, second) = newest_checkpoint(copied)
    assert newest == copied / "checkpoint-1"
    assert second.startswith(f"{copied / 'checkpoint-2'}: {name} {fault}")


def test_a_checkpoint_without_the_optimizers_state_is_said_to_be_so(base, tmp_path, caplog):
    settings = {**EVERY_STEP, "save_only_model": True}
    make(SFT, base, tmp_path, **{**settings, "max_steps": 1}).train()
    make(SFT, base, tmp_path, **settings).train("auto")
    assert any("checkpoint-1 has no state of the optimizer" in said for said in warnings_of(caplog))


def test_an_incomplete_checkpoint_is_passed_over_by_name_and_refused_by_path(run, base, copied, caplog):
    named = copied / "checkpoint-3"
    with pytest.raises(NoCheckpoint, match=r"checkpoint-3 is incomplete: .* one there: .*/checkpoint-2$"):
        make(SFT, base, copied, **EVERY_STEP).train(resume_from_checkpoint=str(named))
    (copied / UNFINISHED / "checkpoint-3").mkdir(parents=True)
    trainer = make(SFT, base, copied, **EVERY_STEP, save_total_limit=2)
    trainer.train(resume_from_checkpoint=True)
    (said,) = [warning for warning in warnings_of(caplog) if "passed over" in warning]
    assert said.startswith(f"Training resumes from {copied / 'checkpoint-2'}; passed over: ")
    assert f"{copied / UNFINISHED / 'checkpoint-3'}: the run ended while it wrote" in said
    assert f"{named}: trainer_state.json" in said
    assert_weights(trainer.model, run[1])
    assert sorted(path.name for path in copied.glob("*check*")) == ["checkpoint-2", "checkpoint-3"]
    assert not (copied / UNFINISHED).exists()


def test_incomplete_checkpoints_are_the_first_to_be_deleted(base, copied):
    """A newer number than what is written next: counted as the newest, it would cost the last complete one."""
    (copied / "checkpoint-3").rename(copied / "checkpoint-9")
    shutil.rmtree(copied / "checkpoint-2")
    make(SFT, base, copied, **{**EVERY_STEP, "max_steps": 2}, save_total_limit=2).train("auto")
    assert sorted(path.name for path in copied.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]


@pytest.mark.parametrize("named", ["absolute", "moved"])
def test_the_best_checkpoint_stays_under_another_name_of_its_folder(named, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2, "load_best_model_at_end": True}
    settings |= {"eval_strategy": "steps", "eval_steps": 1, "learning_rate": 0.5, "adam_epsilon": 1e-8}

    def trained(folder, steps, **resumed):
        rows = rows_of(SFT).select(range(4))
        kwargs = {"trainer_kwargs": {"eval_dataset": rows}, "max_steps": steps, **settings}
        trainer = make(SFT, base, folder, **kwargs)
        trainer.train(**resumed)
        return trainer

    first = trained("here", 2)
    assert first.state.best_model_checkpoint == "here/checkpoint-1"
    folder = tmp_path / "there" if named == "moved" else tmp_path / "here"
    (tmp_path / "here").rename(folder)
    again = trained(str(folder), 4, resume_from_checkpoint=True)
    assert again.state.best_model_checkpoint == str(folder / "checkpoint-1")
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-4"]


@pytest.mark.parametrize("by", ["epochs", "steps"])
def test_another_number_of_rows_per_step_goes_on_elsewhere(by, base, tmp_path, caplog):
    """8 steps of 2 rows are an epoch; the checkpoint of the second is at a quarter of it."""
    settings = {"max_steps": -1, "num_train_epochs": 1} if by == "epochs" else {"max_steps": 4}
    trainer = make(SFT, base, tmp_path, **{**EVERY_STEP, **settings, "per_device_train_batch_size": 2})
    trainer.add_callback(EndAfter(2))
    trainer.train()
    resumed = make(SFT, base, tmp_path, **{**EVERY_STEP, **settings, "per_device_train_batch_size": 4})
    said = "written after 2 steps at epoch 0.25; with the rows per step of this run that is epoch 0.5"
    if by == "epochs":
        with pytest.raises(NoCheckpoint, match=said):
            resumed.train(resume_from_checkpoint=True)
    else:
        resumed.train(resume_from_checkpoint=True)
        assert any(said in each for each in warnings_of(caplog))


@pytest.mark.parametrize(
    ("kind", "changed"),
    [(LoraConfig, {"lora_alpha": 16}), (LoraConfig, {"use_rslora": True}), (LoHaConfig, {"alpha": 16})],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else value.__name__,
)
def test_an_adapter_is_not_resumed_with_another_scaling(base, tmp_path, kind, changed):
    """Its tensors are all the same then, but the model is another: alpha / r or alpha / √r times their product."""

    def trainer_of(**given):
        adapter = kind(**{"r": 4, "target_modules": ["q_proj"], **given})
        return make(SFT, base, tmp_path, trainer_kwargs={"peft_config": adapter}, **{**EVERY_STEP, "max_steps": 1})

    trainer_of().train()
    name = next(iter(changed))
    with pytest.raises(
        CheckpointError, match=rf"checkpoint-1 has {name}=.*, and that of this run {name}={changed[name]}"
    ):
        trainer_of(**changed).train(resume_from_checkpoint=True)


def test_auto_starts_where_there_is_none_and_true_does_not(tmp_path):
    assert resolve_checkpoint("auto", tmp_path / "new") == (None, [])
    assert resolve_checkpoint(None, tmp_path) == resolve_checkpoint("False", tmp_path) == (None, [])
    with pytest.raises(NoCheckpoint, match="there is no such checkpoint; .* has none"):
        resolve_checkpoint(True, tmp_path)


def test_a_path_names_one_of_those_that_are_there(copied):
    (copied / "checkpoint-2").rename(copied / "checkpoint-10")
    named = str(copied / "checkpoint-10")
    assert resolve_checkpoint(named, copied) == (Path(named), [])
    assert resolve_checkpoint("True", copied) == (Path(named), [])
    with pytest.raises(
        NoCheckpoint, match=r"-2: there is no such checkpoint; .* has \['checkpoint-10', 'checkpoint-3', "
    ):
        resolve_checkpoint(str(copied / "checkpoint-2"), copied)


def test_training_that_starts_anew_beside_checkpoints_is_warned_of(base, copied, caplog):
    """In Python; the scripts refuse it."""
    make(SFT, base, copied, max_steps=1).train()
    (said,) = [warning for warning in warnings_of(caplog) if "earlier run" in warning]
    assert said.startswith(f"{copied / 'checkpoint-2'} was written by an earlier run, but training starts anew")


# ------------------------------------------------------------------------------------- kills, signals and a full disk


def killed_while_it_writes(base, folder, where):
    """Ends by SIGKILL while the second checkpoint is written, before or behind a part of it."""
    trainer = make(SFT, base, folder, **EVERY_STEP, save_total_limit=1)
    owner, name, before = {
        "weights": (trainer, "_save", False),
        "optimizer": (trainer, "_save_optimizer_and_scheduler", False),
        "random state": (trainer, "_save_rng_state", False),
        "rename": (checkpoint_module, "publish_checkpoint", True),
        "rotation": (checkpoint_module, "rotate_checkpoints", True),
    }[where]
    work = getattr(owner, name)

    def killing(*args, **kwargs):
        if trainer.state.global_step < 2:
            return work(*args, **kwargs)
        if not before:
            work(*args, **kwargs)
        return os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, killing)
    trainer.train()


@pytest.mark.parametrize("where", full_but("optimizer", ["weights", "optimizer", "random state", "rename", "rotation"]))
def test_a_kill_while_a_checkpoint_is_written_costs_that_one_alone(where, run, base, tmp_path):
    killed = begin(killed_while_it_writes, base, tmp_path, where)
    killed.join(300)
    assert killed.exitcode == -signal.SIGKILL
    there = {path.name for path in tmp_path.glob("checkpoint-*")}
    assert there == ({"checkpoint-1", "checkpoint-2"} if where == "rotation" else {"checkpoint-1"})
    assert (tmp_path / UNFINISHED / "checkpoint-2").exists() == (where != "rotation")
    trainer = make(SFT, base, tmp_path, **EVERY_STEP, save_total_limit=1)
    trainer.train(resume_from_checkpoint="auto")
    assert_weights(trainer.model, run[1])
    assert [path.name for path in tmp_path.glob("*check*")] == ["checkpoint-3"]


def test_a_full_disk_ends_the_run_with_one_line_and_the_checkpoint_before_stays(run, base, tmp_path):
    """A limit on a file's size is reported as a full disk is, while the optimizer's state is written."""
    trainer = make(SFT, base, tmp_path, **EVERY_STEP, save_total_limit=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (run[0] / "checkpoint-1" / "optimizer.pt").stat().st_size
    assert size > (run[0] / "checkpoint-1" / "model.safetensors").stat().st_size
    trainer.add_callback(At(2, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, hard))))
    try:
        with pytest.raises(CheckpointError) as ended:
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = str(ended.value)
    assert said.startswith(f"{tmp_path / 'checkpoint-2'} could not be written: ")
    assert said.endswith(f"free some space, then resume; the newest complete checkpoint: {tmp_path / 'checkpoint-1'}")
    assert "\n" not in said
    assert [path.name for path in tmp_path.glob("*check*")] == ["checkpoint-1"]
    assert not (tmp_path / UNFINISHED).exists()


@pytest.mark.parametrize("number", full_but(signal.SIGTERM, [signal.SIGTERM, signal.SIGUSR1]))
def test_a_signal_writes_a_checkpoint_and_the_stage_is_unfinished(number, run, base, tmp_path, caplog):
    """Under `enable_jit_checkpoint`, too, which returns from `train` as if it were finished."""
    settings = {"max_steps": 3, "save_strategy": "no", "enable_jit_checkpoint": True}
    trainer = make(SFT, base, tmp_path, **settings)
    trainer.add_callback(At(2, lambda: os.kill(os.getpid(), number)))
    with pytest.raises(SystemExit) as ended:
        train_once(trainer, tmp_path / "model")
    assert ended.value.code == STATUS == 75
    assert warnings_of(caplog)[-1].startswith(
        f"A signal asked to end: {tmp_path}/checkpoint-2 was written after step 2"
    )
    assert not (tmp_path / "model").exists()
    assert {signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1)} == {signal.SIG_DFL}
    resumed = make(SFT, base, tmp_path, **settings)
    train_once(resumed, tmp_path / "model")
    assert resumed.state.global_step == 3
    assert_weights(resumed.model, run[1])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def signal_all():
    workers = multiprocessing.active_children()
    assert workers
    # by a third process: what the parent sends is how it ends a worker
    subprocess.run(["kill", "-TERM", *(str(worker.pid) for worker in workers)], check=True)
    time.sleep(0.5)  # in which a death would be noticed
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_to_the_group_leaves_the_workers_of_the_data_alone(run, base, tmp_path):
    """As `timeout`, a terminal and some launchers send it."""
    trainer = make(SFT, base, tmp_path, max_steps=3, save_strategy="no", dataloader_num_workers=1)
    trainer.add_callback(At(2, signal_all))
    with pytest.raises(TrainingInterrupted):
        trainer.train()
    assert checkpoint_fault(tmp_path / "checkpoint-2") is None


class AtTheEnd(TrainerCallback):
    """Sends a signal when the last step was taken."""

    def on_train_end(self, args, state, control, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_after_the_last_step_ends_the_process_when_the_model_is_saved(base, tmp_path, caplog):
    """So that neither the model is lost nor the next stage begun."""
    trainer = make(SFT, base, tmp_path / "run", max_steps=1, save_strategy="no")
    trainer.add_callback(AtTheEnd())
    with pytest.raises(TrainingInterrupted) as ended:
        train_once(trainer, tmp_path / "model")
    assert ended.value.code == STATUS
    assert warnings_of(caplog)[-1].startswith("A signal asked to end: training in ")
    assert model_fault(tmp_path / "model") is None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    train_once(make(SFT, base, tmp_path / "run", max_steps=1, save_strategy="no"), tmp_path / "model")


def interrupted(base, folder, rank):
    """One of two processes gets the signal; gives the status of each, and its step."""
    trainer = make("AdaPOTrainer", base, folder, max_steps=3, save_strategy="no")
    if trainer.args.process_index == rank:
        trainer.add_callback(At(2, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    try:
        trainer.train()
    except TrainingInterrupted as ended:
        return ended.code, trainer.state.global_step, checkpoint_fault(Path(folder) / "checkpoint-2")
    return None


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_all_processes_end_at_the_step_in_which_one_got_the_signal(base, tmp_path, rank):
    assert outcomes(interrupted, 2, base, tmp_path, rank) == [(STATUS, 2, None)] * 2


# --------------------------------------------------------------------------------------------- one run in one folder


def claim(folder, resume=None, overwrite=False, policy="policy", revision="main", image_root=None, **settings):
    from trl_mmreason import ReflectionSFTConfig

    config = ReflectionSFTConfig(str(folder), use_cpu=True, bf16=False, resume_from_checkpoint=resume, **settings)
    try:
        rows = CompletionArguments("rows", overwrite_output_dir=overwrite, image_root=image_root)
        claim_output_dir(rows, config, ModelConfig(policy, model_revision=revision))
    finally:
        with suppress(KeyError):  # it may have been refused before
            unlock_folder(folder)


def test_an_earlier_run_is_overwritten_only_if_that_is_asked_for(copied, tmp_path):
    claim(tmp_path / "new")
    claim(copied, "auto")
    claim(copied, "true")
    claim(copied, str(copied / "checkpoint-1"))
    expected = r"^output_dir=.*copy holds an earlier run \(checkpoint-3\), which this one would overwrite. Fix: another"
    elsewhere = tmp_path / "elsewhere" / "checkpoint-1"
    shutil.copytree(copied / "checkpoint-1", elsewhere)
    for resume in (None, "false", str(elsewhere)):
        with pytest.raises(WrongArgument, match=expected):
            claim(copied, resume)
    claim(copied, overwrite=True, resume="auto")  # there is one to resume from
    assert len([*copied.glob("checkpoint-*")]) == 3
    claim(copied, overwrite=True)
    assert [*copied.glob("checkpoint-*")] == []


def test_completions_of_an_overwritten_run_are_not_those_of_a_shorter_one(tmp_path):
    for name in ("checkpoint-5/model", "completions/completions_00100.parquet", "_questions/questions_00100.parquet"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "completions/notes.txt").touch()
    with pytest.raises(WrongArgument, match=r"holds an earlier run \(checkpoint-5\)"):
        claim(tmp_path)
    assert len([*tmp_path.glob("*/*.parquet")]) == 2
    claim(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.glob("*/*")] == ["notes.txt"]


def test_a_finished_model_alone_is_an_earlier_run_too(copied):
    for path in copied.glob("checkpoint-*"):
        if path.name == "checkpoint-2":
            shutil.copytree(path, copied, dirs_exist_ok=True)  # as `train_and_save` leaves a model of two steps
        shutil.rmtree(path)
    with pytest.raises(WrongArgument, match="earlier run \\(its finished model"):
        claim(copied)
    claim(copied, "auto", max_steps=3)  # as many as it was for: loaded
    with pytest.raises(WrongArgument, match="earlier run \\(its finished model"):
        claim(copied, "auto", max_steps=5)  # there is nothing to resume from


@pytest.mark.parametrize("config", ["config.json", "adapter_config.json"])
def test_a_model_that_no_run_made_is_overwritten_only_if_that_is_asked_for(tmp_path, config):
    for name in (config, "adapter_model.safetensors" if "adapter" in config else "model-00001-of-00002.safetensors"):
        (tmp_path / name).write_text("{}")
    for resume in (None, "auto"):
        with pytest.raises(WrongArgument, match=r"^output_dir=\S+ holds a model, which this run would overwrite\. Fix"):
            claim(tmp_path, resume)
    claim(tmp_path, overwrite=True)
    claim(tmp_path)  # the run above began in it, and has not saved its model


def test_the_policy_is_never_overwritten(copied, tmp_path):
    last = copied / "checkpoint-3"
    expected = r"^output_dir=\S+ holds the policy to train, model_name_or_path=\S+, which this run would overwrite\. "
    for policy, folder, overwrite in ((last, last, False), (last, last, True), (last, copied, True)):
        with pytest.raises(WrongArgument, match=expected):
            claim(folder, policy=str(policy), overwrite=overwrite)
    assert (last / "config.json").exists()
    claim(tmp_path / "new", policy=str(last))


def test_an_output_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"^\S+file/run: nothing can be written there .*Fix: name another output_dir"):
        claim(tmp_path / "file" / "run")


def test_only_incomplete_checkpoints_are_no_reason_not_to_start(copied):
    for name in ("checkpoint-1", "checkpoint-2"):
        shutil.rmtree(copied / name)
    claim(copied, "auto")
    with pytest.raises(NoCheckpoint, match=r"checkpoint-3: trainer_state.json"):
        claim(copied, "true")


def test_a_run_is_resumed_with_its_policy_and_learning_rate(copied):
    claim(copied, "auto", learning_rate=1e-5)  # the first to say them
    for changed in ({"policy": "other"}, {"learning_rate": 1e-6}, {"revision": "v2"}, {"image_root": "elsewhere"}):
        with pytest.raises(SettingsChanged, match="other settings(?s:.*)results: another --output_dir.$"):
            claim(copied, "auto", **{"learning_rate": 1e-5, **changed})
    claim(copied, "auto", learning_rate=1e-5, max_steps=9, per_device_train_batch_size=2)
    claim(copied, str(copied / "checkpoint-1"), learning_rate=1e-6)  # asked for by name
    claim(copied, "auto", learning_rate=1e-6)


def hold(folder):
    lock_folder(folder)
    (Path(folder) / "held").touch()
    signal.pause()


def test_two_runs_at_once_are_refused_and_a_kill_leaves_no_lock(base, tmp_path):
    other = begin(hold, tmp_path)
    while not (tmp_path / "held").exists():
        assert other.is_alive()
    trainer = make(SFT, base, tmp_path, max_steps=1)
    with pytest.raises(FolderInUse, match=rf"another run is writing into this folder \(process {other.pid} on "):
        trainer.train()
    other.kill()
    other.join()
    trainer.train()
    assert lock_folder(tmp_path)  # training has ended
    assert not lock_folder(tmp_path)
    unlock_folder(tmp_path)


def test_a_run_that_ends_before_a_rollout_goes_on_as_if_it_had_not(checkpoints, tmp_path, caplog):
    """As where the server of its rollouts is lost, which the third step finds out."""

    def trainer_in(folder, lost_at=None):
        trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path / folder, drawn_rows(6), max_steps=4)
        roll_out = trainer._generate_and_score_completions

        def find_out(inputs):
            if trainer.state.global_step == lost_at:
                end_with_checkpoint(trainer, "nothing answers")
            return roll_out(inputs)

        trainer._generate_and_score_completions = find_out
        return trainer

    whole = trainer_in("whole")
    whole.train()
    with pytest.raises(TrainingInterrupted) as ended:
        trainer_in("parts", lost_at=2).train()
    assert ended.value.code == STATUS
    assert [path.name for path in (tmp_path / "parts").glob("checkpoint-*")] == ["checkpoint-2"]
    assert "Training ends: nothing answers." in warnings_of(caplog)[-1]
    resumed = trainer_in("parts")
    resumed.train("auto")
    assert_weights(weights_of(resumed.model), weights_of(whole.model))
    with pytest.raises(RuntimeError, match="Training ends before its first update: nothing answers"):
        trainer_in("none", lost_at=0).train()
