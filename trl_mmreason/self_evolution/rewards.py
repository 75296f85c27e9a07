"""Self-evolution's two rewards without labels (Eq. 8): agreement modulated by a judge, and format.

A group may be spread over processes: answers and scores are gathered, and each process pays its own responses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from ..compat.chat_template import generation_prefix
from ..data.images import images_of
from ..evaluation.voting import Equality, cluster_answers, votes_of, winning_position
from ..generation.batch import tokenizer_of
from ..generation.engine import Engine, Failure, Request, SamplingParams, derive_seed
from ..grading import Grader, equivalent
from ..grading.async_rewards import Ahead
from ..jobs.asking import ask_until_read
from ..messages import images_inside, question_text
from ..replies import ReplyCount
from .config import SelfEvolutionConfig
from .objective import judge_modulation, majority_vote, self_consistency
from .prompts import judge_message, read_score
from .response import Response, read_free_response, read_response

ATTEMPTS = 2  # a reply of the judge that cannot be read is asked for once more


class Group(NamedTuple):
    """One question's responses.

    Attributes:
        first: the number of the first among all that were gathered.
        answers: G answers, `None` where there is none.
        scores: G scores, 0 without one clear final answer; NaN where the judge said nothing that could be read, or
            there is none.
        judged: whether the judge said something of each.
    """

    first: int
    answers: list[str | None]
    scores: list[float]
    judged: list[bool]

    def winners(self, equal: Equality) -> tuple[int | None, int | None]:
        """The winning answers by agreement and by the judge's mean score, as positions of their first members.

        `None` where nobody wins: there is no answer; the judge said nothing of any, or finds several the best.
        """
        clusters = cluster_answers(self.answers, equal)
        known = [[self.scores[k] for k in members if not math.isnan(self.scores[k])] for members in clusters]
        means = [fmean(scores) if scores else -math.inf for scores in known]
        best = [members for members, mean in zip(clusters, means, strict=True) if mean == max(means)]
        judged = best[0][0] if len(best) == 1 and any(self.judged) else None
        return winning_position(self.answers, equal), judged


class SelfEvolutionRewards:
    """Both parts of the reward, which parse and judge each batch once.

    Args:
        processing_class: the policy's.
        args: what is paid.
        group_size: tells how many consecutive responses are to one question.
        judge: gives the judge for a while, as an engine; not asked for without `args.judge`.
        asks_for_format: tells whether the prompts of this batch are those of training, to which the format belongs. In
            an evaluation under the model's official prompt it is not asked for: nothing violates it, and the judge
            scores every response with an answer.
        judged_by: the engine, if it is always the same one; responses may be judged while others are sampled if it
            works elsewhere.

    Attributes:
        groups: groups that this process has responses of, as of the last rewards.
        equal: whether two answers say the same, by the grader and as remembered for these groups.
    """

    def __init__(
        self,
        processing_class: Any,
        args: SelfEvolutionConfig,
        group_size: Callable[[], int],
        judge: Callable[[], AbstractContextManager[Engine]],
        asks_for_format: Callable[[], bool],
        judged_by: Engine | None = None,
    ) -> None:
        self.processing_class, self.args = processing_class, args
        self._opening = generation_prefix(processing_class, **(args.chat_template_kwargs or {}))
        self._special_tokens = special_tokens_of(processing_class)
        self._group_size, self._judge, self._asks_for_format = group_size, judge, asks_for_format
        self._sampling_params = SamplingParams(args.judge_max_tokens, args.judge_sampling_temperature, args.judge_top_p)
        effect = "Such a score scales no reward, or pays none without a vote; judge/neutral is their share."
        self._count = ReplyCount("The judge", "three scores between [BEGIN SCORES] and [END SCORES]", effect)
        self._judged = Ahead(self._ask, judged_by)
        self._seen: Sequence[Sequence[int]] | None = None
        self._rewards: list[float | None] = []
        self._responses: list[Response] = []
        self.groups: list[Group] = []
        self.equal: Equality = equivalent

    @property
    def functions(self) -> list[Callable[..., list[float | None]]]:
        """r · g(s) and −λ_fmt δ (Eq. 8); their sum is the reward."""
        return [self.agreement_reward, self.format_reward]

    def agreement_reward(self, **batch: Any) -> list[float | None]:
        """r · g(s); without a vote s itself, and `None` without a score."""
        self._read(**batch)
        return self._rewards

    def format_reward(self, **batch: Any) -> list[float | None]:
        """−λ_fmt for a violated format."""
        self._read(**batch)
        return [0.0 if response.is_well_formed else -self.args.format_penalty for response in self._responses]

    def begin(self, rows: Mapping[int, Mapping[str, Any]], texts: Sequence[str], step: int) -> None:
        """Start judging responses while others are sampled.

        Args:
            rows: place among those of all processes → row.
            texts: the decoded responses.
            step: training step.
        """
        if self.args.judge:
            prompts = [row["prompt"] for row in rows.values()]
            texts = self._opened(texts, prompts)
            seeds = [self._seed(step, place, text) for place, text in zip(rows, texts, strict=True)]
            images = [row.get("images") for row in rows.values()]
            self._judged.begin(self._requests(texts, prompts, images, seeds, map(self._response, texts)).values())

    def texts(self, completion_ids: Sequence[Sequence[int]], prompts: Sequence[Any]) -> list[str]:
        """The responses, including the beginning that the chat template wrote."""
        written = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
        return self._opened(written, prompts)

    def _opened(self, written: Sequence[str], prompts: Sequence[Any]) -> list[str]:
        openings = ["" if isinstance(prompt, str) else self._opening for prompt in prompts]  # a string has no template
        return [opening + text for opening, text in zip(openings, written, strict=True)]

    def _response(self, text: str) -> Response:
        return read_response(text) if self._asks_for_format() else read_free_response(text)

    def _seed(self, step: int, place: int, text: str) -> int:
        return derive_seed(self.args.seed, step, place // self._group_size(), text)

    def _read(
        self,
        completion_ids: Sequence[Sequence[int]],
        prompts: Sequence[Any],
        trainer_state: Any = None,
        images: Sequence[Any] | None = None,
        choices: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        log_extra: Callable[[str, list], None] | None = None,
        **columns: Any,
    ) -> None:
        """Parse, judge and reward a batch, once for all functions, and log the metrics."""
        if self._seen is completion_ids:
            return
        texts = self.texts(completion_ids, prompts)
        self._responses = [self._response(text) for text in texts]
        self.equal = cache(equivalent)  # each pair is compared once, and forgotten with the batch
        first, size = PartialState().process_index * len(texts), self._group_size()
        step = trainer_state.global_step if trainer_state else 0
        seeds = [self._seed(step, first + k, text) for k, text in enumerate(texts)]
        begun = time.perf_counter()
        scores = [math.nan] * len(texts)
        if self.args.judge:
            scores = self._scores(texts, prompts, images or [[]] * len(texts), seeds)
        seconds = time.perf_counter() - begun
        answers = [response.answer for response in self._responses]
        if choices is not None:
            answers = _votes(answers, choices)
        judged = [one.is_single and not math.isnan(score) for one, score in zip(self._responses, scores, strict=True)]
        gathered = [gather_object(each) for each in (answers, scores, judged)]
        self.groups = [
            Group(start, *(each[start : start + size] for each in gathered))
            for start in range(first - first % size, first + len(texts), size)
        ]
        rewards = {
            group.first + k: reward for group in self.groups for k, reward in enumerate(self._compute_rewards(group))
        }
        self._rewards = [rewards[first + k] for k in range(len(texts))]
        self._seen = completion_ids  # kept, so that no later list has the same identity
        if log_metric:
            self._log(log_metric, scores, seconds, first, len(texts))
        if log_extra:
            log_extra("answer", [response.answer or "" for response in self._responses])
            if self.args.judge:
                log_extra("judge_score", scores)

    def _compute_rewards(self, group: Group) -> list[float | None]:
        if self.args.vote == "none":
            return [None if math.isnan(score) else score for score in group.scores]
        vote = self_consistency if self.args.vote == "self_consistency" else majority_vote
        rewards = vote(group.answers, self.equal)
        if self.args.judge:
            rewards = rewards * judge_modulation(torch.tensor(group.scores), **self.args.modulation)
        return rewards.tolist()

    def _scores(
        self, texts: Sequence[str], prompts: Sequence[Any], images: Sequence[Any], seeds: Sequence[int]
    ) -> list[float]:
        """s of each response: 0 without one clear final answer, NaN if no reply could be read."""
        requests = self._requests(texts, prompts, images, seeds, self._responses)
        replies = self._judged.finish(requests.values())
        scores = {
            seed: math.nan if isinstance(reply, Failure) else reply["score"]
            for seed, reply in zip(requests, replies, strict=True)
        }
        return [
            scores[seed] if response.is_single else 0.0 for seed, response in zip(seeds, self._responses, strict=True)
        ]

    def _requests(
        self,
        texts: Sequence[str],
        prompts: Sequence[Any],
        images: Sequence[Any],
        seeds: Sequence[int],
        responses: Iterable[Response],
    ) -> dict[int, Request]:
        """Requests to the judge by seed; equal responses to the same question are judged once."""
        requests: dict[int, Request] = {}
        for text, prompt, row_images, seed, response in zip(texts, prompts, images, seeds, responses, strict=True):
            if response.is_single and seed not in requests:
                message = judge_message(self.args.judge_prompt, question_text(prompt), text, self._special_tokens)
                seen = images_of({"images": row_images}) or images_inside(prompt)
                requests[seed] = Request([{"role": "user", "content": message}], seen, seed=seed)
        return requests

    def _ask(self, requests: list[Request]) -> list[dict[str, Any] | Failure]:
        reads = [lambda reply: {"score": read_score(reply)}] * len(requests)
        with self._judge() as engine:
            return ask_until_read(engine, self._sampling_params, requests, reads, ATTEMPTS, self._count)

    def _log(
        self, log_metric: Callable[[str, float], None], scores: Sequence[float], seconds: float, first: int, count: int
    ) -> None:
        for response in self._responses:
            if self._asks_for_format():
                log_metric("format_violations", float(not response.is_well_formed))
            log_metric("no_answer", float(response.answer is None))
        for group in self.groups:
            if not first <= group.first < first + count:  # another process has its first response, and logs it
                continue
            log_metric("distinct_answers", float(len(cluster_answers(group.answers, self.equal))))
            agreed, judged = group.winners(self.equal)
            if agreed is not None and judged is not None:
                log_metric("agreement", float(agreed == judged))
        if not self.args.judge:
            return
        log_metric("time/judge", seconds)
        for response, score in zip(self._responses, scores, strict=True):
            if response.is_single:
                log_metric("judge/neutral", float(math.isnan(score)))
                if not math.isnan(score):
                    log_metric("judge/score", score)


def _votes(answers: Sequence[str | None], choices: Sequence[Mapping[str, str | None] | None]) -> list[str | None]:
    """Convert answers to votes, so that the letter A and what stands after it are one; see `votes_of`."""
    votes: list[str | None] = []
    for listed, rows in groupby(zip(answers, choices, strict=True), key=itemgetter(1)):  # a group lists the same
        votes += votes_of({"choices": listed}, [answer for answer, _ in rows], Grader())
    return votes


def special_tokens_of(processing_class: Any) -> list[str]:
    """All of a tokenizer's special tokens that structure a conversation, longest first."""
    added = tokenizer_of(processing_class).added_tokens_decoder.values()
    return sorted((token.content for token in added if token.special), key=len, reverse=True)
