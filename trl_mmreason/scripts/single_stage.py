"""Shared code of the example scripts: policy, data and trainer arguments by name, training and saving."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

from accelerate.utils import is_peft_model
from datasets import Dataset
from peft import PeftConfig
from transformers import Trainer, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from trl import GRPOConfig, GRPOTrainer, ModelConfig, SFTConfig, SFTTrainer, get_peft_config, get_quantization_config

from ..data.folders import adapter_base, check_model_folder, lock_folder
from ..data.mixed_sources import one_after_the_other
from ..data.row_loading import load_completions, load_rows
from ..generation.model_loading import PROCESSOR_FILES, TOKENIZER_FILES
from ..generation.transformers_engine import TransformersEngine
from ..jobs.store import Store
from ..miniature.lessons import Lessons
from ..miniature.models import FAMILIES, SIZES, build_model
from ..miniature.tasks import CATEGORIES, SPLITS, make_dataset
from ..training.checkpoint import explained_writing, restore_adapter, restore_weights, save_whole
from ..training.documented import documented
from ..training.interruption import saves_before_it_ends
from ..training.logged_questions import logged_by_a_run
from ..training.model_card import MINIATURE
from ..training.resuming import finished_state, holds_model, left_by_a_run, resolve_checkpoint
from ..training.sft import CompletionSFTConfig, CompletionSFTTrainer
from .cold_start import cold_start
from .refusals import WrongArgument, exit_on_refusal, hub_errors, hub_fix, hub_text
from .reward_files import load_rewards
from .script_parser import ScriptParser, named_policy
from .sections import DataArguments, parse_eval_sets, parsed_columns

logger = logging.getLogger(__name__)


class PushRefused(RuntimeError):
    """The Hub did not take a model, which is saved."""


AGAIN = "the same command with --resume_from_checkpoint auto"

_NEWEST = ("true", "auto")  # values of `resume_from_checkpoint` that name no checkpoint

_SETTINGS = "_run.sqlite"
"""Of a run of one stage, in its output folder: `_DECIDING`, which a resumed run has to share."""

_DECIDING = (
    *("model_name_or_path", "use_peft", "lora_r", "dataset_name", "dataset_split", "columns", "train_rows"),
    *("video_frames", "min_pixels", "max_pixels", "system_prompt", "reward_funcs", "learning_rate", "seed"),
)

LORA_TARGETS = r"(.*(language|text)_model.*|model\.layers\..*)\.(q|k|v|o|gate|up|down)_proj"
"""Layers that an adapter is for by default: the language model's, which Idefics and SmolVLM call `text_model` and whose
layers in a text-only one are `model.layers.N`, and none of the vision encoder's. configs/*/your_model.yaml have the
first name."""


def run(main: Callable[..., None]) -> None:
    """Call a script's `main` with what the command line says, parsed as its annotations."""
    kinds = [kind for name, kind in get_type_hints(main).items() if name != "return"]
    with exit_on_refusal(again=AGAIN):
        main(*ScriptParser(kinds).parse_args_and_config())


def prepare(
    data_args: DataArguments, training_args: GRPOConfig, model_args: ModelConfig, lessons: Lessons
) -> tuple[dict[str, Any], Dataset | None]:
    """Claim the output folder, and load the rows and the policy; a miniature one is taught `lessons`.

    Returns:
        A trainer's arguments, and the rows to compare on.
    """
    rewards = load_rewards(data_args.reward_funcs or [])
    claim_output_dir(data_args, training_args, model_args)
    train_rows, eval_sets = load_data(data_args, training_args.seed)
    settings = {
        **trainer_settings(model_args, training_args, eval_sets),
        "grader": data_args.grader(TransformersEngine),
        **({"reward_funcs": rewards} if rewards else {}),
    }
    policy = policy_path(data_args, model_args, training_args, lessons)
    return {"model": policy, "args": training_args, "train_dataset": train_rows, **settings}, compared_rows(eval_sets)


def load_data(arguments: DataArguments, seed: int) -> tuple[Dataset, dict[str, Dataset] | Dataset | None]:
    """Load the training rows and, if configured, the evaluation rows, of one set or several, before slow work."""
    train = load_split(arguments, arguments.dataset_name, arguments.dataset_split, arguments.train_rows, seed=seed)
    if arguments.eval_dataset_name is None:
        return train, None
    split, prompt = str(arguments.eval_split), arguments.eval_system_prompt
    compared = replace(arguments, system_prompt=prompt or arguments.system_prompt)
    load = partial(load_split, compared, split=split, rows=arguments.eval_rows, seed=seed + 1)
    return train, of_each_set(load, arguments.eval_dataset_name)


def of_each_set(load: Callable[[str], Dataset], sets: dict[str, str] | str) -> dict[str, Dataset] | Dataset:
    """Load one evaluation set, or each of several."""
    return load(sets) if isinstance(sets, str) else {name: load(source) for name, source in sets.items()}


def compared_rows(sets: dict[str, Dataset] | Dataset | None) -> Dataset | None:
    """The rows that policies are compared on; those of several sets have the set's name as their category."""
    return one_after_the_other(sets) if isinstance(sets, dict) else sets


def load_split(arguments: DataArguments, name: str, split: str, rows: int | None, *, seed: int) -> Dataset:
    """Load one split, sampling at most `rows`; `miniature/…` is drawn, with 3,000 rows by default."""
    if name.startswith(MINIATURE):
        category = name.removeprefix(MINIATURE)
        if category not in CATEGORIES or split not in SPLITS:
            raise WrongArgument(
                f"{name}, split {split}: expected miniature/<category> with a category of {', '.join(CATEGORIES)} and "
                f"a split of {', '.join(SPLITS)}."
            )
        return make_dataset([category], rows or 3000, split=split, seed=seed)
    names = ("columns", "image_root", "video_frames", "min_pixels", "max_pixels", "system_prompt", "on_error")
    reading = {key: getattr(arguments, key) for key in names}
    return load_rows(name, split=split, max_rows=rows, seed=seed, **reading).dataset


def policy_path(
    arguments: DataArguments, model_args: ModelConfig, training_args: TrainingArguments, lessons: Lessons
) -> str:
    """Path of the initial policy; `miniature/<family>/<size>` is built and taught `lessons` unless it exists."""
    name = named_policy(model_args)
    if not name.startswith(MINIATURE):
        check_model_folder(name)
        return name
    family, size = family_and_size(name)
    if not arguments.dataset_name.startswith(MINIATURE):
        raise WrongArgument(
            f"{name} is a miniature that knows only drawn problems, but dataset_name={arguments.dataset_name!r}. "
            "Train it on miniature/<category>, or name another policy."
        )
    category = arguments.dataset_name.removeprefix(MINIATURE)
    # The name holds all that decides the result, so that another policy's cold start has another name.
    seed, accuracy = training_args.seed, arguments.cold_start_accuracy
    details = f"{family}-{size}-{category}-{accuracy}-seed{seed}-{lessons.name}"
    folder = Path(training_args.output_dir) / "cold_start" / details
    if not folder.exists():
        model, processor = build_model(family, size, seed=seed, **lessons.vocabulary)
        model = model.to(training_args.device)
        cold_start(model, processor, [category], folder, lessons=lessons, target_accuracy=accuracy, seed=seed)
    return str(folder)


def family_and_size(name: str) -> tuple[str, str]:
    """Parse `miniature/<family>/<size>`, the name of a policy."""
    family, _, size = name.removeprefix(MINIATURE).partition("/")
    if family not in FAMILIES or size not in SIZES:
        raise WrongArgument(
            f"model_name_or_path={name!r}, expected miniature/<family>/<size> with a family of {sorted(FAMILIES)} and "
            f"a size of {sorted(SIZES)}."
        )
    return family, size


def trainer_settings(
    model_args: ModelConfig, training_args: GRPOConfig | SFTConfig, eval_rows: dict | Dataset | None = None
) -> dict[str, Any]:
    """Trainer arguments from TRL's `ModelConfig`; fills in `training_args.model_init_kwargs`.

    `eval_rows` become the trainer's `eval_dataset`, if the configuration asks for evaluation during training.
    """
    refuse_adapter(named_policy(model_args))
    training_args.model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
        **(training_args.model_init_kwargs or {}),
    }
    settings = {
        "quantization_config": get_quantization_config(model_args),
        "peft_config": adapter_config(model_args),
    }
    if training_args.eval_strategy != "no" or training_args.eval_on_start:
        if eval_rows is None:
            raise WrongArgument(
                f"eval_strategy={str(training_args.eval_strategy.value)!r} and "
                f"eval_on_start={training_args.eval_on_start}, but there are no rows to evaluate on. Fix: "
                "--eval_dataset_name, where the method has it, or --eval_strategy no --eval_on_start false"
            )
        settings["eval_dataset"] = eval_rows
    return settings


def adapter_config(model_args: ModelConfig) -> PeftConfig | None:
    """The adapter that the arguments ask for, without targets for `LORA_TARGETS`; `None` without `use_peft`."""
    if not (model_args.lora_target_modules or model_args.lora_target_parameters):
        model_args = replace(model_args, lora_target_modules=LORA_TARGETS)  # type: ignore[arg-type]  # TRL passes it on
    return get_peft_config(model_args)


def refuse_adapter(name: str) -> None:
    """Refuse a folder with an adapter as the policy to train."""
    if (base := adapter_base(name)) is not None:
        raise WrongArgument(
            f"model_name_or_path={name!r} holds an adapter of {base}, expected a whole model. Fix: to resume its "
            f"training, give the base and --resume_from_checkpoint {name}/checkpoint-…; to train on from it, merge it "
            "into its base and give that folder."
        )


def claim_output_dir(
    data_args: DataArguments | CompletionArguments, training_args: TrainingArguments, model_args: ModelConfig
) -> None:
    """Keep other runs out of the output folder until this process ends, and refuse to overwrite what is in it.

    Raises:
        FolderInUse: another run is writing into it.
        WrongArgument: it holds an earlier run or a model that was to be neither resumed nor overwritten, or the policy.
        SettingsChanged: the run to resume had another policy, other rows or another learning rate.
    """
    if training_args.process_index:
        return
    folder, resume = Path(training_args.output_dir), training_args.resume_from_checkpoint
    takes_newest = str(resume).lower() in _NEWEST
    _refuse_to_overwrite_policy(named_policy(model_args), folder, overwrites=data_args.overwrite_output_dir)
    lock_folder(folder)
    checkpoint, _ = resolve_checkpoint(resume, folder)
    left = list(left_by_a_run(folder))
    is_resumed = checkpoint is not None and checkpoint.resolve().parent == folder.resolve()
    is_resumed = is_resumed or (takes_newest and finished_state(training_args) is not None)
    if data_args.overwrite_output_dir and not is_resumed:
        for path in [*left, *logged_by_a_run(folder)]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    # with "auto" a run starts where all checkpoints are incomplete
    elif left and not is_resumed and (any(path.is_file() for path in left) or str(resume).lower() != "auto"):
        what = left[0].name if left[0].is_dir() else "its finished model, with no checkpoint to go on from"
        raise WrongArgument(
            f"output_dir={training_args.output_dir} holds an earlier run ({what}), which this one would overwrite. "
            "Fix: another --output_dir; --resume_from_checkpoint auto resumes from a checkpoint; "
            "--overwrite_output_dir true deletes what is there"
        )
    may_write = is_resumed or data_args.overwrite_output_dir or (folder / _SETTINGS).exists()
    if not may_write and holds_model(folder):
        raise WrongArgument(
            f"output_dir={training_args.output_dir} holds a model, which this run would overwrite. Fix: another "
            "--output_dir; --overwrite_output_dir true if that model may be lost"
        )
    if not (is_resumed and takes_newest):
        (folder / _SETTINGS).unlink(missing_ok=True)
    given = {**vars(data_args), **training_args.to_dict(), **vars(model_args)}
    settings = {name: given.get(name) for name in _DECIDING}
    for name, usual in {"model_revision": "main", "image_root": None}.items():  # so that earlier runs go on
        if given[name] != usual:
            settings[name] = given[name]
    with Store(folder / _SETTINGS, elsewhere="another --output_dir") as store:
        store.fix_settings("training", settings)


def _refuse_to_overwrite_policy(policy: str, folder: Path, *, overwrites: bool) -> None:
    """Refuse to train a policy into its own folder, and to delete it with the checkpoints that it is one of."""
    path = Path(policy).expanduser().resolve()
    deleted = left_by_a_run(folder.resolve()) if overwrites else ()
    if path.is_dir() and (path == folder.resolve() or any(path.is_relative_to(each) for each in deleted)):
        raise WrongArgument(
            f"output_dir={folder} holds the policy to train, model_name_or_path={policy}, which this run would "
            "overwrite. Fix: another --output_dir"
        )


def train_and_save(trainer: GRPOTrainer | SFTTrainer) -> None:
    """Train as `resume_from_checkpoint` says, and save the model; a finished run is loaded and trained no further."""
    args = trainer.args
    folder, resume = Path(args.output_dir), args.resume_from_checkpoint
    if str(resume).lower() in _NEWEST and (state := finished_state(args)) is not None:
        _load_finished(trainer, folder)
        if trainer.is_world_process_zero():
            logger.warning(
                f"{folder} is already finished: {state.global_step} of {state.max_steps} steps. Its model is loaded. "
                "To train further: larger --max_steps or --num_train_epochs, or a checkpoint's name"
            )
        return
    with saves_before_it_ends(trainer):
        trainer.train(resume_from_checkpoint=resume)
        with explained_writing(folder):
            trainer.save_model(args.output_dir, _internal_call=True)  # leaves the push to `publish`
            trainer.save_state()  # the last: it says that the run is finished, and `mmreason report` reads it
        trainer.accelerator.wait_for_everyone()  # then any process may read what the first one wrote


def _load_finished(trainer: Trainer, folder: Path) -> None:
    """Load a model or adapter that was saved before, and the state of its training."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    restore = restore_adapter if is_peft_model(model) else restore_weights
    restore(model, folder)
    trainer.state = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME))


def publish(trainer: GRPOTrainer | SFTTrainer, dataset_name: str) -> None:
    """Write the saved model's card with the results so far, push it if the arguments say so, and print its address."""
    folder = trainer.args.output_dir
    trainer.create_model_card(model_name=Path(folder).name, dataset_name=dataset_name)
    if not trainer.args.push_to_hub:
        return
    try:
        commit = trainer.push_to_hub(dataset_name=dataset_name)
    except hub_errors() as error:
        fix = hub_fix(error)
        then = f"{fix}, then {AGAIN}" if fix else AGAIN
        raise PushRefused(
            f"the model is saved in {folder}, but was not pushed: {hub_text(error)}. Fix: {then}, "
            "which trains no further and pushes."
        ) from error
    if trainer.is_world_process_zero():
        sys.stdout.write(f"Pushed to {commit.repo_url}\n")


def print_end(folder: Path, dataset_name: str) -> None:
    """Name what a finished run of one or several stages leaves: models, pages, and the command to run next.

    Args:
        folder: its output folder.
        dataset_name: what it was trained on; a miniature is evaluated on the same problems, a text-only model and one
            that was trained on rows of the user's own on such rows.
    """
    models = [*sorted(folder.glob("*/model")), *sorted(folder.glob("*/round-*/policy"))] or [folder]
    pages = [*sorted(folder.glob("*.html")), *sorted(folder.glob("*/*.html"))]
    model, base = str(models[0]), adapter_base(str(models[0]))
    policy = ["--model", model] if base is None else ["--model", base, "--adapter", model]
    policy = ["--model", "MODEL"] if models[1:] else policy
    saved = {path.name for path in models[0].glob("*.json")}
    is_text_only = saved & {*TOKENIZER_FILES} and not saved & {*PROCESSOR_FILES}  # the benchmarks have images
    benchmark = "mine=ROWS.jsonl" if is_text_only or Path(dataset_name).exists() else "mathvista"
    benchmark = dataset_name if dataset_name.startswith(MINIATURE) else benchmark
    sys.stdout.write(
        f"\nOutput: {', '.join(map(str, models))}\n"
        f"Report: {', '.join(map(str, pages)) or shlex.join(['mmreason', 'report', str(models[-1])])}\n"
        f"Next:   {shlex.join(['mmreason', 'evaluate', benchmark, *policy])}\n"
    )


@documented
@dataclass
class CompletionArguments:
    """The source of the rows of supervised training.

    Attributes:
        dataset_name: parquet file, folder or Hub id of rows with `prompt`, `images` and `completion`; or JSON lines,
            conversations and the like, which `load_rows` reads as completions.
        dataset_split: the split to train on.
        eval_dataset_name: rows to measure the loss on, named likewise; `eval_strategy` and `eval_on_start` say when.
            `None` leaves that out. Several sets are a mapping of names to them, on the command line as JSON.
        eval_split: the split to measure on; a file has only one.
        columns: our column names → the source's, on the command line as JSON.
        image_root: folder that relative image paths start from.
        overwrite_output_dir: train anew in a folder that holds another run, whose checkpoints and logged completions
            are deleted first, or a model; never one that holds the policy to train.
    """

    dataset_name: str
    dataset_split: str = "train"
    eval_dataset_name: dict | str | None = None
    eval_split: str = "test"
    columns: dict | str | None = None
    image_root: str | None = None
    overwrite_output_dir: bool = False

    def __post_init__(self) -> None:
        self.columns = parsed_columns(self.columns)
        self.eval_dataset_name = parse_eval_sets(self.eval_dataset_name)


def train_on_completions(
    trainer: type[CompletionSFTTrainer],
    data_args: CompletionArguments,
    training_args: CompletionSFTConfig,
    model_args: ModelConfig,
) -> None:
    """Train the arguments' policy on the rows, and save it."""
    claim_output_dir(data_args, training_args, model_args)
    reading: dict[str, Any] = {"columns": data_args.columns, "image_root": data_args.image_root}
    rows, eval_rows = load_completions(data_args.dataset_name, data_args.dataset_split, **reading), None
    if data_args.eval_dataset_name is not None:
        load = partial(load_completions, split=data_args.eval_split, **reading)
        eval_rows = of_each_set(load, data_args.eval_dataset_name)
    settings = trainer_settings(model_args, training_args, eval_rows)
    if eval_rows is not None and "eval_dataset" not in settings:
        raise WrongArgument(
            f"eval_dataset_name={data_args.eval_dataset_name!r} has no effect with eval_strategy='no' and "
            "eval_on_start=False. Fix: --eval_strategy epoch, or --eval_dataset_name null"
        )
    policy = trainer(named_policy(model_args), args=training_args, train_dataset=rows, **settings)
    train_and_save(policy)
    publish(policy, data_args.dataset_name)
    if policy.is_world_process_zero():
        print_end(Path(training_args.output_dir), data_args.dataset_name)


def train_once(trainer: Trainer, folder: Path, dataset_name: str | None = None) -> None:
    """Train a model, or its adapter, and save it with its card into `folder`.

    Training resumes from the newest complete checkpoint in the output folder, if there is one. A model that was saved
    before is loaded instead, the state of training included. Training that a signal ended has saved no model, and a
    model whose training a callback ended is finished.
    """
    if folder.exists():
        _load_finished(trainer, folder)
        return
    output = Path(trainer.args.output_dir)
    with saves_before_it_ends(trainer):
        trainer.train(resume_from_checkpoint="auto")
        save_whole(trainer, folder)
        trainer.args.output_dir = str(folder)  # the card is written there, and its example loads the folder
        trainer.create_model_card(model_name=output.name, dataset_name=dataset_name)
        trainer.args.output_dir = str(output)
