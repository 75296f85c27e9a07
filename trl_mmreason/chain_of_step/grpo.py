"""GRPO with Chain-of-Step's rewards (arXiv:2509.19003, section 4.5); only the reward differs from GRPO.

    with a process reward model     w · mean(step scores) + (1 − w) · answer score          section 3.4
    without                         1 if the chain's answer is right, else 0                "outcome" of Table 5

A chain that is malformed or cut earns what its readable part does: the whole steps before its first fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from ..compat.chat_template import token_counter
from ..compat.model_parts import freeze_vision_encoder
from ..grading import Grader, Verdict, grader_or_rules
from ..grading.async_rewards import Ahead
from ..grading.reward import ended_items, grading_items, log_verdicts
from ..messages import images_inside, text_messages
from ..training.construction import all_rewards, check_rows, config_of, load_policy_processor
from ..training.credit import GroupOutcome, without_ungraded
from ..training.grpo import GroupGRPOTrainer
from .chains import CHAIN_PROBLEMS, PathScore, ProcessReward, ReadPath, read_path, scorable_rows, score_paths
from .config import ChainOfStepGRPOConfig
from .objective import step_advantages
from .process_reward_client import process_reward_from
from .recipe import PAPER
from .template import ANSWER_END, STEP_END
from .tokens import chain_token_ids, part_of_token

_LogMetric = Callable[[str, float], None]
_LogExtra = Callable[[str, list], None]


class ChainRewards:
    """Two alternative reward functions, and the metrics of the chains.

    They read the sampled token ids and not TRL's completions, as chat templates may take these apart. If the data set
    has a column `answer`, the chains' answers are graded; `choices` and `id` are used if there.

    Args:
        process_reward: scores the chains; `None` for the reward by outcome, which needs the answers.
        grader: decides whether an answer is right; `Grader()` by default.
        step_weight: w.
    """

    def __init__(
        self,
        processing_class: Any,
        process_reward: ProcessReward | None,
        grader: Any = None,
        *,
        step_weight: float = 0.2,
    ) -> None:
        self.processing_class = processing_class
        self.process_reward = process_reward
        self.grader = grader_or_rules(grader, "ChainOfStepGRPOTrainer")
        self.step_weight = step_weight
        self.scores: list[PathScore] = []  # of the last batch
        self._paths: dict[str, ReadPath] = {}  # of the batch that is sampled
        self._graded = Ahead(self.grader.grade_batch, self.grader)
        self._scored = None if process_reward is None else Ahead(process_reward.score, process_reward)

    @property
    def function(self) -> Callable[..., list[float | None]]:
        """The reward function that the configuration selects."""
        return self.outcome_reward if self.process_reward is None else self.trajectory_reward

    def begin(self, rows: Sequence[Mapping[str, Any]], texts: Sequence[str], *, are_all: bool) -> None:
        """Start grading chains while others are sampled, and scoring them when a whole batch has ended.

        The last digits of a score depend on what else is scored in its batch, which must not depend on the clock.
        """
        paths = self._parsed(texts)
        if "answer" in rows[0]:
            self._graded.begin(ended_items(rows, [path.answer or "" for path in paths]))
        if self._scored and are_all:
            questions = [_question(row["prompt"], row.get("images")) for row in rows]
            self._scored.begin(row for row in scorable_rows(questions, paths) if row)

    def trajectory_reward(
        self,
        prompts: Sequence[Any],
        images: Sequence[Any] | None = None,
        log_metric: _LogMetric | None = None,
        log_extra: _LogExtra | None = None,
        **batch: Any,
    ) -> list[float | None]:
        """Reward each path with its trajectory score."""
        assert self._scored is not None
        paths, _ = self._graded_paths(prompts=prompts, log_metric=log_metric, log_extra=log_extra, **batch)
        rows = [
            _question(prompt, row_images)
            for prompt, row_images in zip(prompts, images or [None] * len(paths), strict=True)
        ]
        scores = self.scores = score_paths(self._scored.finish, rows, paths, self.step_weight)
        if log_metric:
            for score in scores:
                log_metric("trajectory_score", score.total)
                if score.steps:
                    log_metric("step_score", mean(score.steps))
                if score.answer is not None:
                    log_metric("answer_score", score.answer)
        if log_extra:
            log_extra("step_scores", [" ".join(f"{step:.3f}" for step in score.steps) for score in scores])
            log_extra("answer_score", ["" if score.answer is None else f"{score.answer:.3f}" for score in scores])
        return [score.total for score in scores]

    def outcome_reward(self, **batch: Any) -> list[float | None]:
        """1 for a right answer, 0 for a wrong one or none, and `None` where the gold answer cannot be used."""
        _, verdicts = self._graded_paths(**batch)
        return [None if verdict.correct is None else float(verdict.correct) for verdict in verdicts]

    def _parsed(self, texts: Sequence[str]) -> list[ReadPath]:
        """Parse what `begin` has not seen yet of the batch."""
        self._paths |= {text: read_path(text) for text in texts if text not in self._paths}
        return [self._paths[text] for text in texts]

    def _graded_paths(
        self,
        prompts: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        log_metric: _LogMetric | None = None,
        log_extra: _LogExtra | None = None,
        **columns: Any,
    ) -> tuple[list[ReadPath], list[Verdict]]:
        """Parse the chains, grade their answers if there are gold answers, and log the metrics that need no scores."""
        paths = self._parsed(self.processing_class.batch_decode(completion_ids, skip_special_tokens=True))
        self._paths = {}
        if log_metric:
            count_tokens = token_counter(self.processing_class)
            for path in paths:
                log_metric("steps", float(path.steps))
                log_metric("chain/complete", float(path.problem is None))
                for problem in CHAIN_PROBLEMS:
                    log_metric(f"chain/{problem}", float(problem == path.problem))
                for step in path.step_texts:
                    log_metric("step_tokens", float(count_tokens(step)))
        if log_extra:
            log_extra("problem", [path.problem or "" for path in paths])
        if "answer" not in columns:
            return paths, []
        answers = [path.answer or "" for path in paths]
        others = (columns.get(name) for name in ("choices", "id", "tolerance"))
        items = grading_items(answers, columns["answer"], prompts, *others)
        verdicts = self._graded.finish(items)
        if log_extra:
            log_extra("correct", [verdict.correct for verdict in verdicts])
        if log_metric:
            log_verdicts(verdicts, log_metric)
            for verdict in verdicts:
                if verdict.correct is not None:
                    log_metric("accuracy", float(verdict.correct))
        return paths, verdicts


def _question(prompt: Any, images: Any) -> dict[str, Any]:
    """What a process reward model is asked about; images may be inside the prompt, in no column."""
    return {"prompt": text_messages(prompt), "images": images or images_inside(prompt)}


class ChainOfStepGRPOTrainer(GroupGRPOTrainer):
    """Trains a policy to reason in steps, rewarded by a process reward model.

    Args:
        model: path or id of a checkpoint, or a model; `ChainOfStepSFTTrainer` comes first.
        process_reward_model: a `ProcessRewardModel`, the path of one, which every process loads and scores its share
            with, or the address of its `vllm serve`; `None` for the reward by outcome.
        args: a `ChainOfStepGRPOConfig`.
        train_dataset, eval_dataset: rows with `prompt` and `images`. With `answer`, and optionally `choices` (letter →
            text), accuracy is logged; the reward by outcome needs it.
        grader: decides whether an answer is right; `Grader()` by default.
        reward_funcs: further reward functions, which are added; `args.reward_weights` then weighs the chain's first.
        **kwargs: whatever `trl.GRPOTrainer` takes, by keyword.

    Raises:
        ValueError: the policy does not know the template's tokens.
        ProcessRewardServerError: there is no server at the address.
    """

    _tag_names = ["trl", "trl-mmreason", "chain-of-step", "grpo"]
    _name = "Chain-of-Step GRPO"
    _paper = PAPER

    args: ChainOfStepGRPOConfig

    def __init__(
        self,
        model: Any,
        process_reward_model: ProcessReward | str | Path | None,
        *,
        args: ChainOfStepGRPOConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        grader: Grader | None = None,
        reward_funcs: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ) -> None:
        args = config_of(self, ChainOfStepGRPOConfig, args, model, "CoS-GRPO")
        for option in ("followup", "max_turns"):
            if kwargs.get(option) is not None:
                raise ValueError(f"ChainOfStepGRPOTrainer: a chain is one turn; leave `{option}` out.")
        by_outcome = process_reward_model is None
        columns = {"prompt", "answer"} if by_outcome else {"prompt"}
        check_rows("ChainOfStepGRPOTrainer", train_dataset, eval_dataset, columns)
        if by_outcome and args.step_weight != ChainOfStepGRPOConfig.step_weight:
            raise ValueError(
                f"ChainOfStepGRPOTrainer: step_weight={args.step_weight} weighs the scores of a process reward model, "
                "and there is none. Pass one, or leave step_weight out."
            )
        if args.step_credit and args.scale_rewards == "batch":
            raise ValueError(
                "ChainOfStepGRPOTrainer: step_credit=True compares steps within a group, scale_rewards='batch' whole "
                "batches. Choose 'group' or 'none'."
            )
        if args.step_credit and (by_outcome or reward_funcs or args.step_weight != ChainOfStepGRPOConfig.step_weight):
            raise ValueError(
                "ChainOfStepGRPOTrainer: step_credit=True pays each step's tokens its own score. It needs a process "
                "reward model, and no step_weight and reward_funcs, which are of whole trajectories."
            )
        processing_class = processing_class or load_policy_processor(model, args)
        try:
            chain_token_ids(processing_class)
        except ValueError as error:
            raise ValueError(
                "ChainOfStepGRPOTrainer: the policy lacks the tokens of the template, so that it would never "
                f"write a chain. Train it with ChainOfStepSFTTrainer first. ({error})"
            ) from error
        if process_reward_model is not None:
            process_reward_model = process_reward_from(process_reward_model)
            _ = process_reward_model.settings  # an address without a server shows now, not after the first rollouts
        self.rewards = ChainRewards(processing_class, process_reward_model, grader, step_weight=args.step_weight)
        super().__init__(
            model,
            reward_funcs=all_rewards("ChainOfStepGRPOTrainer", [self.rewards.function], reward_funcs),
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            **kwargs,
        )
        if args.freeze_vision_encoder:
            freeze_vision_encoder(self.accelerator.unwrap_model(self.model), merger=False)

    def answers_ended(self, rows: dict[int, dict[str, Any]], texts: list[str]) -> None:
        self.rewards.begin(list(rows.values()), texts, are_all=len(rows) == len(self._sampled))

    def score_groups(self, rewards: Tensor) -> GroupOutcome:
        """Drop rows without a score; with `step_credit` each step's tokens get its own advantage."""
        outcome = without_ungraded(rewards)
        return replace(outcome, advantages=self._step_credit()) if self.args.step_credit else outcome

    def _step_credit(self) -> list[Tensor]:
        """The advantages of each trajectory's tokens, of all processes."""
        gathered = gather_object([(score.steps, score.answer) for score in self.rewards.scores])
        scale = self.args.scale_rewards != "none"
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups = [gathered[start : start + size] for start in range(0, len(gathered), size)]
        advantages = [path for group in groups for path in step_advantages(*zip(*group, strict=True), scale=scale)]
        first = self.accelerator.process_index * len(self.trajectories)
        ends = {chain_token_ids(self.processing_class)[token] for token in (STEP_END, ANSWER_END)}
        credit = []
        for trajectory, parts in zip(self.trajectories, advantages[first:], strict=False):
            (part,) = part_of_token(torch.tensor([trajectory.completion_ids]), ends)
            if int(part.max()) + 1 < len(parts):  # it spells a closing token in pieces: nobody knows which are whose
                part = torch.full_like(part, -1)
            part = part.where(part < len(parts), -1)  # behind a fault more may be closed than is scored
            credit.append(torch.cat([parts, torch.zeros(1)])[part].tolist())
        return [torch.tensor(row) for row in gather_object(credit)]
