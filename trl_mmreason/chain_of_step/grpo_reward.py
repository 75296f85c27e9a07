"""Reward functions for TRL's GRPO on sampled chains.

    with a process reward model     w · mean(step scores) + (1 − w) · answer score          section 3.4
    without                         1 if the chain's answer is right, else 0                "outcome" of Table 5

A chain that is malformed or cut earns what its readable part does: the whole steps before its first fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean
from typing import Any

from ..compat.chat_template import token_counter
from ..grading import Verdict, grader_or_rules
from ..grading.async_rewards import Ahead
from ..grading.reward import ended_items, grading_items, log_verdicts
from ..messages import text_of
from .paths import CHAIN_PROBLEMS, PathScore, ProcessReward, ReadPath, read_path, scorable_rows, score_paths, step_texts


class ChainRewards:
    """Two alternative reward functions, and the metrics of the chains.

    They read the sampled token ids and not TRL's completions, as chat templates may take these apart. If the data set
    has a column `answer`, the chains' answers are graded; `choices` and `id` are used if there.

    Args:
        processing_class: the policy's.
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
        if "answer" in rows[0]:
            self._graded.begin(ended_items(rows, [read_path(text).answer or "" for text in texts]))
        if self._scored and are_all:
            questions = [{"prompt": text_messages(row["prompt"]), "images": row.get("images")} for row in rows]
            self._scored.begin(row for row in scorable_rows(questions, texts) if row)

    def trajectory_reward(
        self,
        prompts: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        images: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Reward each path with its trajectory score."""
        assert self._scored is not None
        texts = self._texts(completion_ids)
        self._read(texts, prompts, log_metric, log_extra, columns)
        rows = [
            {"prompt": text_messages(prompt), "images": pictures}
            for prompt, pictures in zip(prompts, images or [None] * len(texts), strict=True)
        ]
        scores = score_paths(self._scored.finish, rows, texts, self.step_weight)
        if log_metric:
            _log_each([score_measures(score) for score in scores], log_metric)
        if log_extra:
            log_extra("step_scores", [" ".join(f"{step:.3f}" for step in score.steps) for score in scores])
            log_extra("answer_score", ["" if score.answer is None else f"{score.answer:.3f}" for score in scores])
        return [score.total for score in scores]

    def outcome_reward(
        self,
        prompts: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """1 for a right answer, 0 for a wrong one or none, and `None` where the gold answer cannot be used."""
        verdicts = self._read(self._texts(completion_ids), prompts, log_metric, log_extra, columns)
        return [None if verdict.correct is None else float(verdict.correct) for verdict in verdicts]

    def _texts(self, completion_ids: Sequence[Sequence[int]]) -> list[str]:
        return self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)

    def _read(
        self,
        texts: Sequence[str],
        prompts: Sequence[Any],
        log_metric: Callable[[str, float], None] | None,
        log_extra: Callable[[str, list], None] | None,
        columns: Mapping[str, Any],
    ) -> list[Verdict]:
        """Grade the chains' answers if there are gold answers, and log the metrics that need no scores."""
        paths = [read_path(text) for text in texts]
        if log_metric:
            _log_each([path_measures(path) for path in paths], log_metric)
            for tokens in self._step_tokens(paths):
                log_metric("step_tokens", float(tokens))
        if log_extra:
            log_extra("problem", [path.problem or "" for path in paths])
        if "answer" not in columns:
            return []
        answers = [path.answer or "" for path in paths]
        items = grading_items(answers, columns["answer"], prompts, columns.get("choices"), columns.get("id"))
        verdicts = self._graded.finish(items)
        if log_extra:
            log_extra("correct", [verdict.correct for verdict in verdicts])
        if log_metric:
            log_verdicts(verdicts, log_metric)
            for verdict in verdicts:
                if verdict.correct is not None:
                    log_metric("accuracy", float(verdict.correct))
        return verdicts

    def _step_tokens(self, paths: Sequence[ReadPath]) -> list[int]:
        """Tokens of every whole step, from its opening to its closing token."""
        count_tokens = token_counter(self.processing_class)
        return [count_tokens(step) for path in paths for step in step_texts(path.scorable)]


def path_measures(path: ReadPath) -> dict[str, float]:
    """Metrics of one path; means over the batch are logged."""
    return {
        "chain/complete": float(path.problem is None),
        **{f"chain/{problem}": float(problem == path.problem) for problem in CHAIN_PROBLEMS},
        "steps": float(path.steps),
    }


def score_measures(score: PathScore) -> dict[str, float]:
    """The available scores of one path; means over the batch are logged."""
    measures = {"trajectory_score": score.total}
    if score.steps:
        measures["step_score"] = mean(score.steps)
    if score.answer is not None:
        measures["answer_score"] = score.answer
    return measures


def text_messages(prompt: Any) -> list[dict[str, str]]:
    """A prompt's messages with text contents, as they were before TRL inserted pictures."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [{"role": message["role"], "content": text_of(message["content"])} for message in prompt]


def _log_each(measures: Sequence[Mapping[str, float]], log_metric: Callable[[str, float], None]) -> None:
    for of_path in measures:
        for name, value in of_path.items():
            log_metric(name, value)
