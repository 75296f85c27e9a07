"""Iterative DPO (arXiv:2509.19003, section 3.4): rounds of sampling, scoring, pairing and DPO.

    D_r = pairs of paths (or steps) of π_(r−1),   π_r = DPO(π_(r−1); D_r, π_ref),   π_0 = π_ref = the SFT model

Everything is kept in the output folder, and a run resumes from what it finds there:

    rounds.sqlite          every round's paths and scores
    round-1/pairs.parquet  what DPO learnt from, without the images
    round-1/checkpoint-…   if `save_strategy` makes any
    round-1/policy         the policy after the round; the round is finished when it is there
    rounds.json            the measures of every round
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import chain
from math import isnan
from pathlib import Path as FilePath
from typing import Any

from accelerate.utils import broadcast_object_list, is_peft_model
from datasets import Dataset
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import TrainOutput
from trl import DPOConfig, DPOTrainer

from ..compat.chat_template import token_counter
from ..compat.model_parts import freeze_vision_encoder
from ..compat.sharding import whole_parameters
from ..data.folders import atomic_path, write_whole
from ..data.images import with_images
from ..generation.engine import Engine, Failure, SamplingParams
from ..generation.model_loading import fingerprint, whole_policy
from ..generation.protocols import Direct
from ..generation.transformers_engine import TransformersEngine
from ..generation.vllm_engine import VLLMProcess
from ..grading import Grader, grader_or_rules
from ..grading.grader import grader_settings
from ..jobs.answering import Answers, answer_questions, score_answers
from ..jobs.store import Store
from ..training.checkpoint import CheckpointRestoreMixin, restore_adapter, restore_weights, save_whole
from ..training.construction import (
    NamedArguments,
    NamedEvaluations,
    check_rows,
    config_of,
    load_policy_processor,
    without_image_columns,
)
from ..training.facts import RunFactsMixin
from ..training.preparation import prepare_loading, prepare_models
from ..training.processor_checks import check_template, warn_of_other_prompts
from ..training.reference import reference_from_policy
from .chains import Path, ProcessReward, path_metrics, question_digests, with_ids
from .config import STEP_WISE, IterativeDPOConfig
from .pairs import PAIR_FEATURES, make_pairs, make_step_pairs, pair_accuracies, searched_paths, with_last_parts
from .process_reward_client import process_reward_from
from .protocols import Chains, ChainScorer, paths_of, search_answers
from .recipe import PAPER
from .template import ANSWER_END, EXAMPLE, STEP_END
from .tokens import chain_token_ids

_logger = logging.getLogger(__name__)

_NO_PAIRS_YET = Dataset.from_list(
    [{**{name: [{"role": "user", "content": "?"}] for name in ("prompt", "chosen", "rejected")}, "images": []}]
)
"""For TRL's constructor, which looks at a first row; the column of images has it prepare rows when they are used."""

# What of the configuration decides on the rounds, beside how paths are drawn and scored.
_DECIDING = (
    *("chains", "num_paths", "step_weight", "pair_threshold", "pairing", "max_pairs"),
    *("freeze_vision_encoder", "beta", "loss_type"),
    *("learning_rate", "num_train_epochs", "max_steps", "warmup_steps", "weight_decay", "lr_scheduler_type", "seed"),
    *("per_device_train_batch_size", "gradient_accumulation_steps", "optim"),
    *("adam_beta1", "adam_beta2", "max_grad_norm"),
)
_SELDOM_SET = (  # which decide, too, and are compared only where they are set, so that earlier runs go on
    *("label_smoothing", "loss_weights", "ld_alpha", "use_weighting", "f_divergence_type", "f_alpha_divergence_coef"),
    *("discopop_tau", "disable_dropout", "adam_epsilon", "optim_args", "lr_scheduler_kwargs", "data_seed"),
    *("train_sampling_strategy", "dataloader_drop_last", "neftune_noise_alpha", "router_aux_loss_coef"),
    "optim_target_modules",
)


class IterativeDPOTrainer(NamedArguments, NamedEvaluations, RunFactsMixin, CheckpointRestoreMixin, DPOTrainer):
    """Trains a policy on pairs of its own paths, in rounds; the reference stays the initial policy.

    `train()` resumes a killed run, in whichever round and stage it stopped. After it, `state.log_history` has the
    steps of all rounds, one after the other, and `rounds` the measures of each.

    Args:
        model: path or id of a checkpoint that `ChainOfStepSFTTrainer` trained, or a model.
        process_reward_model: a `ProcessRewardModel`, a client of a server, or a path or URL of one; `None` pairs right
            with wrong answers instead ("Outcome" of Table 2).
        args: an `IterativeDPOConfig`.
        train_dataset: questions: rows with `prompt`, `images` and `answer`, optionally `choices` and `id`.
        eval_dataset: other questions, answered greedily before the first and after each round.
        grader: `Grader()` by default.
        sampler: the engine that samples from a checkpoint, given its folder, such as `VLLMProcess`, which is closed
            before the round trains; by default transformers samples from the policy in training.
        **kwargs: whatever `trl.DPOTrainer` takes, by keyword, but for optimizers, as each round has its own.
    """

    _tag_names = ["trl", "trl-mmreason", "chain-of-step", "dpo"]
    _name = "Chain-of-Step iterative DPO"
    _paper = PAPER

    args: IterativeDPOConfig
    data_collator: Any
    deepspeed: Any

    def __init__(
        self,
        model: Any,
        process_reward_model: ProcessReward | str | None,
        *,
        args: IterativeDPOConfig | None = None,
        train_dataset: Dataset | None = None,
        eval_dataset: Dataset | None = None,
        grader: Grader | None = None,
        sampler: Callable[[str], Engine] | None = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        args = config_of(self, IterativeDPOConfig, args, model, "DPO")
        _check_arguments(train_dataset, eval_dataset, kwargs)
        args.check_process_reward(process_reward_model)
        processing_class = processing_class or load_policy_processor(model, args)
        ids = chain_token_ids(processing_class) if args.chains else {}
        check_template("IterativeDPOTrainer", processing_class, EXAMPLE)
        warn_of_other_prompts("IterativeDPOTrainer", processing_class, EXAMPLE)
        in_sight = partial(without_image_columns, processing_class=processing_class, name="IterativeDPOTrainer")
        self.questions = with_ids(in_sight(train_dataset))
        self.eval_questions = None if eval_dataset is None else with_ids(in_sight(eval_dataset))
        self.process_reward = None if process_reward_model is None else process_reward_from(process_reward_model)
        self.grader = grader_or_rules(grader, type(self).__name__)
        self.sampler = sampler
        self.rounds: list[dict[str, Any]] = []
        self._current = 0  # rounds that the model in memory has finished
        self._start = model if isinstance(model, str) else None
        padding = prepare_loading(model, args)
        with reference_from_policy(model, args, kwargs.get("peft_config")):
            pairs = in_sight(_NO_PAIRS_YET)
            super().__init__(model, args=args, train_dataset=pairs, processing_class=processing_class, **kwargs)
        self.data_collator = with_images(self.data_collator)
        if args.pairing == STEP_WISE:
            self.data_collator = with_last_parts(self.data_collator, (ids[STEP_END], ids[ANSWER_END]))
        policy = self.accelerator.unwrap_model(self.model)
        # Under FSDP2 the first process alone may have read the weights.
        weights = broadcast_object_list([fingerprint(whole_parameters(policy))])[0]
        self._deciding = {
            **{name: str(getattr(args, name)) for name in _DECIDING},
            **{name: str(one) for name in _SELDOM_SET if (one := getattr(args, name)) != getattr(DPOConfig, name)},
            "policy": weights,
            "questions": hashlib.sha256("".join(question_digests(self.questions)).encode()).hexdigest()[:16],
        }
        if args.freeze_vision_encoder:
            freeze_vision_encoder(policy, merger=False)
        prepare_models(self, padding)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """Train all unfinished rounds; return the `Trainer.train` output of the last one.

        Args:
            resume_from_checkpoint: nothing, a bool or "auto", as training always resumes from what is in `output_dir`.

        Raises:
            SettingsChanged: the output folder holds rounds that were made in another way.
            ValueError: in the first round the scores of not one pair differ by more than the threshold.
        """
        if isinstance(resume_from_checkpoint, str) and resume_from_checkpoint != "auto":
            raise ValueError(
                f"IterativeDPOTrainer: resume_from_checkpoint={resume_from_checkpoint!r}; it resumes from the rounds "
                f"in output_dir, {self.args.output_dir}. Leave it out, or set output_dir."
            )
        output, finished = TrainOutput(0, 0.0, {}), 0
        self.rounds = self._recorded()
        with Store(self._root / "rounds.sqlite", elsewhere="another output_dir") as store:
            store.fix_settings("rounds", self._deciding)
            store.fix_settings("paths", self._drawing)  # the stages of a round know nothing of another round's
            for number in range(1, self.args.rounds + 1):
                if not self._policy(number).exists():
                    self._become(number - 1)
                    pairs = self._make_pairs(number, store)
                    if not len(pairs):
                        break
                    output = self._train_round(number, pairs, **kwargs)
                finished = number
            self._become(finished)
            self._evaluate_policy(finished, store)
        self._join_histories(finished)
        return output

    @property
    def _drawing(self) -> dict[str, Any]:
        """How the paths of all rounds are drawn and scored."""
        return {
            "sampling_params": asdict(self.args.sampling_params),
            "process_reward": None if self.process_reward is None else self.process_reward.settings,
            "grader": grader_settings(self.grader),
        }

    def _make_pairs(self, number: int, store: Store) -> Dataset:
        """Make the pairs of the policy's paths; without any, training ends."""
        before = number - 1
        self._evaluate_policy(before, store)
        by_steps = self.args.pairing == STEP_WISE
        pairs, metrics = self._pairs_of_steps(before, store) if by_steps else self._pairs_of_paths(before, store)
        self._record(before, "train", {**metrics, "pairs": len(pairs)})
        if not len(pairs):
            why = (
                f"of the {'steps' if by_steps else 'paths'} of {len(self.questions)} questions no two scores differ by "
                f"more than {self.args.pair_threshold}"
            )
            if number == 1:
                raise ValueError(
                    f"IterativeDPOTrainer: {why}; their mean is {metrics.get('trajectory_score', metrics['accuracy'])}."
                    " Lower pair_threshold, raise num_paths, or look at what the policy writes, in rounds.sqlite."
                )
            _logger.warning("IterativeDPOTrainer: training ends before round %d: %s.", number, why)
        return pairs

    def _pairs_of_paths(self, finished: int, store: Store) -> tuple[Dataset, dict[str, float]]:
        """Pairs of whole paths of the current policy, and metrics of the paths."""
        paths, metrics = self._sample(finished, store)
        if self.process_reward is None:  # what has no verdict, as a judge did not reply, is neither right nor wrong
            paths = {id_: [path for path in tried if path.correct is not None] for id_, tried in paths.items()}
        scores = {
            id_: [float(bool(path.correct)) if path.score is None else path.score for path in question_paths]
            for id_, question_paths in paths.items()
        }
        args = self.args
        settings: dict[str, Any] = {"pairing": args.pairing, "max_pairs": args.max_pairs}
        pairs = make_pairs(self.questions, paths, scores, threshold=args.pair_threshold, **settings)
        return pairs, {**metrics, **pair_accuracies(pairs, paths)}

    def _pairs_of_steps(self, finished: int, store: Store) -> tuple[Dataset, dict[str, float]]:
        """Pairs of steps of the current policy, and metrics of the chains of its best steps."""
        assert self.process_reward is not None  # check_process_reward
        n, stage = self.args.num_paths, f"policy {finished}, training steps"
        at_once = min(self.args.sampling_batch_size, self.args.scoring_batch_size)
        asking: dict[str, Any] = {"sampling_params": self.args.sampling_params, "batch_size": max(1, at_once // n)}
        asking |= {"grader": self.grader, "seed": self.args.seed + finished, "description": f"sampling, {stage}"}
        with self._engine(finished) as engine:
            searches = search_answers(self.questions, engine, self.process_reward, store, n=n, stage=stage, **asking)
        successful = {id_: search for id_, search in searches.items() if not isinstance(search, Failure)}
        pairs = make_step_pairs(self.questions, successful, threshold=self.args.pair_threshold)
        return pairs, self._measures_of(searched_paths(list(successful.values()), self.args.step_weight))

    def _sample(
        self, finished: int, store: Store, *, evaluating: bool = False
    ) -> tuple[dict[str, list[Path]], dict[str, float]]:
        """Sample and score the policy after this many rounds; return paths and metrics."""
        args, questions, stage = self.args, self.questions, f"policy {finished}, training"
        asking: dict[str, Any] = {"n": args.num_paths, "sampling_params": args.sampling_params}
        if evaluating:
            questions, stage = self.eval_questions, f"policy {finished}, evaluation"
            asking = {"n": 1, "sampling_params": SamplingParams(args.max_completion_length, temperature=0)}
        asking |= {"grader": self.grader, "seed": args.seed + finished, "batch_size": args.sampling_batch_size}
        asking |= {"stage": f"{stage} paths", "description": f"sampling, {stage}"}
        with self._engine(finished) as engine:
            answers = answer_questions(questions, engine, store, Chains() if args.chains else Direct(), **asking)
        if self.process_reward is not None:
            answers = self._scored(answers, questions, ChainScorer(self.process_reward, args.step_weight), stage)
        paths = paths_of(answers)
        return paths, self._measures_of([*chain.from_iterable(paths.values())])

    def _scored(self, answers: Answers, questions: Any, scorer: ChainScorer, stage: str) -> Answers:
        # A path without a score ended the last run, so that no pair was made without it.
        scoring: dict[str, Any] = {"batch_size": self.args.scoring_batch_size, "retry_failed": True}
        scored = score_answers(
            answers, questions, scorer, stage=f"{stage} scores", description=f"scoring, {stage}", **scoring
        )
        pairs = zip(chain.from_iterable(answers), chain.from_iterable(scored), strict=True)
        outcomes = [outcome for path, outcome in pairs if not isinstance(path, Failure)]
        if failed := [outcome.reason for outcome in outcomes if isinstance(outcome, Failure)]:
            raise RuntimeError(
                f"IterativeDPOTrainer: of {len(outcomes)} paths {len(failed)} have no score; the first {failed[0]}."
                " Fix the cause and run again, which scores these alone."
            )
        return scored

    def _evaluate_policy(self, finished: int, store: Store) -> None:
        if self.eval_questions is not None:
            self._record(finished, "eval", self._sample(finished, store, evaluating=True)[1])

    def _measures_of(self, paths: list[Path]) -> dict[str, float]:
        metrics = path_metrics(paths, token_counter(self.processing_class))
        return metrics if self.args.chains else {"accuracy": metrics["accuracy"]}

    @contextmanager
    def _engine(self, finished: int) -> Iterator[Engine]:
        if self.sampler is not None:
            engine = self.sampler(self._folder(finished))
            try:
                yield engine
            finally:
                if isinstance(engine, VLLMProcess):
                    engine.close()
            return
        with whole_policy(self, self._folder(finished)) as policy:
            yield TransformersEngine(policy, self.processing_class, batch_size=self.args.sampling_batch_size)

    def _train_round(self, number: int, pairs: Dataset, **kwargs: Any) -> TrainOutput:
        folder, output_dir = self._policy(number).parent, self.args.output_dir
        folder.mkdir(parents=True, exist_ok=True)
        if self.is_world_process_zero():
            with atomic_path(folder / "pairs.parquet") as unfinished:
                pairs.select_columns(list(PAIR_FEATURES)).to_parquet(unfinished)
        self.train_dataset = pairs
        if not self._is_vision_dataset:  # pairs with images are prepared batch by batch
            pairs = without_image_columns(pairs, self.processing_class, "IterativeDPOTrainer")
            self.train_dataset = self._prepare_dataset(pairs, self.processing_class, self.args, "train")
        self.args.output_dir = str(folder)
        try:
            output = super().train("auto", **kwargs)
        finally:
            self.args.output_dir = output_dir
        self._current = number
        save_whole(self, self._policy(number), _internal_call=True)
        # The next round has an optimizer and a schedule of its own; until then nobody needs these in memory.
        if self.is_deepspeed_enabled:
            self.deepspeed.destroy()
            self.model_wrapped, self.deepspeed = self.model, None
        self.optimizer = self.lr_scheduler = None
        self.callback_handler.optimizer = self.callback_handler.lr_scheduler = None
        self.accelerator.free_memory()
        return output

    def _become(self, finished: int) -> None:
        """Load the weights of the policy after this many rounds; after 0 rounds the model has them already.

        The reference stays as it is.
        """
        if finished != self._current:
            restore = restore_adapter if is_peft_model(self.model) else restore_weights
            restore(self.model, self._policy(finished))
            self._current = finished

    def _join_histories(self, finished: int) -> None:
        """Concatenate the logs of all rounds."""
        history: list[dict[str, float]] = []
        steps = 0
        for number in range(1, finished + 1):
            state = TrainerState.load_from_json(str(self._policy(number) / "trainer_state.json"))
            history += [{**entry, "step": steps + entry["step"], "round": number} for entry in state.log_history]
            steps += state.global_step
        self.state.log_history, self.state.global_step = history, steps

    def _record(self, finished: int, name: str, metrics: dict[str, float]) -> None:
        """Store and log the metrics of the policy after this many rounds."""
        known = {entry["round"]: entry for entry in self._recorded()}
        # a mean of nothing is not a number, which JSON does not have
        known.setdefault(finished, {"round": finished})[name] = {k: v for k, v in metrics.items() if not isnan(v)}
        self.rounds = [known[number] for number in sorted(known)]
        if self.is_world_process_zero():
            write_whole(self._root / "rounds.json", json.dumps(self.rounds, indent=2))  # others may be reading the file
        self.accelerator.wait_for_everyone()
        _logger.info("after %d rounds, %s: %s", finished, name, metrics)

    def _recorded(self) -> list[dict[str, Any]]:
        """The measures of the rounds so far."""
        file = self._root / "rounds.json"
        return json.loads(file.read_text()) if file.exists() else []

    @property
    def _root(self) -> FilePath:
        return FilePath(self.args.output_dir)

    def _policy(self, number: int) -> FilePath:
        return self._root / f"round-{number}" / "policy"

    def _folder(self, finished: int) -> str:
        """Folder of the policy after this many rounds."""
        if finished:
            return str(self._policy(finished))
        if self._start is not None:
            return self._start
        folder = self._policy(0)
        is_there = folder.exists()
        self.accelerator.wait_for_everyone()  # all look before any saves: they save together, or none does
        if not is_there:
            save_whole(self, folder, _internal_call=True)
        return str(folder)


def _check_arguments(train_dataset: Any, eval_dataset: Any, others: Mapping[str, Any]) -> None:
    for name in ("optimizers", "data_collator", "ref_model", "compute_metrics"):
        if others.get(name) not in (None, (None, None)):
            raise TypeError(f"IterativeDPOTrainer: it has its own {name}; leave `{name}` out.")
    if train_dataset is None:
        raise ValueError("IterativeDPOTrainer: train_dataset is missing; pass the questions to sample paths of.")
    for role, rows in {"train_dataset": train_dataset, "eval_dataset": eval_dataset}.items():
        if rows is not None and not isinstance(rows, Dataset):
            raise TypeError(
                f"IterativeDPOTrainer: {role} is of type {type(rows).__name__}, expected one datasets.Dataset, as "
                "paths are kept question by question. Join several with concatenate_datasets."
            )
        if rows is not None and rows.format["type"] == "custom":
            raise ValueError(
                f"IterativeDPOTrainer: {role} has a transform, which pairs would not have. Fix: apply it with map."
            )
    check_rows("IterativeDPOTrainer", train_dataset, eval_dataset, {"prompt", "answer"})
