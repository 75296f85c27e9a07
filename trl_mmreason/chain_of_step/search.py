"""Step-level beam search (arXiv:2509.19003, section 4.3.2): sample n next steps, keep the best, until the answer.

The best is the candidate whose own part the process reward model scores highest: its last step, or its answer. The
trajectory score, by which whole chains are compared, has no part in it.

A part is what stands between the kept beginning and the next `<|reasoning_step_end|>` or `<|answer_end|>`. What is kept
is handed to the engine as the beginning of the assistant's turn and never sampled again, so that n chains' worth of
tokens is drawn in all, as by best-of-n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ..data.images import images_of
from ..data.rows import Row
from ..generation.engine import Engine, Failure, Request, Sample, SamplingParams, derive_seed
from .chains import SAMPLING_PARAMS, ProcessReward, ReadPath, read_path, scorable_rows
from .template import ANSWER_END, STEP_END

MAX_STEPS = 16
"""The paper gives no bound; its chains have 5 to 10 steps."""

MALFORMED, TOO_LONG = "malformed", "too_long"


class BeamSearched(NamedTuple):
    """State of one question's search, and finally its result.

    Attributes:
        path: what was kept: a whole chain, or what there was before the search found no way on.
        tokens: number of sampled tokens, of all candidates; `None` if the engine does not say.
        scores: scores of the part that was kept at each stage, the answer's last.
        worst: of each stage the candidate that scored lowest, and its score; of equal ones the earliest. Where all
            candidates said the same it is the one that was kept.
        problem: why there is no answer. "malformed": at one stage no candidate was a whole part; "too_long": after the
            last step that was allowed no candidate answered. `None` with an answer.
    """

    path: ReadPath = ReadPath("", (), "no_chain")
    tokens: int | None = 0
    scores: tuple[float, ...] = ()
    worst: tuple[tuple[str, float], ...] = ()
    problem: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the search is unfinished."""
        return self.path.answer is None and self.problem is None


def step_beam_search(
    rows: Sequence[Row],
    engine: Engine,
    process_reward: ProcessReward,
    *,
    n: int,
    sampling_params: SamplingParams = SAMPLING_PARAMS,
    max_steps: int = MAX_STEPS,
    seed: int = 0,
) -> list[BeamSearched | Failure]:
    """Search for an answer to each question step by step.

    At each stage n candidates for the next part are sampled, and the one whose part scores highest is kept; of equal
    ones the earliest. A candidate's score is that of its own part, a step or the answer (the paper does not say
    what an answer's is). All questions advance together: a stage is one call of the engine and one of the reward model.

    Args:
        rows: questions with id, prompt, and optionally images (or image).
        engine: samples the candidates; it has to continue prefixes and know stop strings.
        n: candidates per stage.
        sampling_params: how they are drawn; `max_new_tokens` bounds one part, and `stop` is the search's own.
        max_steps: steps a chain may have; after the last one only answers are candidates.
        seed: other seeds give other candidates. They depend on the row's id, the stage and their number alone, as far
            as the engine keeps its promise.

    Returns:
        One a row; the `Failure` of the engine where it could not sample.

    Raises:
        ValueError: as `part_sampling_params`.
    """
    sampling_params = part_sampling_params(sampling_params, n=n, max_steps=max_steps)
    rows = list(rows)
    searches: list[BeamSearched | Failure] = [BeamSearched()] * len(rows)
    for stage in range(max_steps + 1):
        open_searches = {k: one for k, one in enumerate(searches) if isinstance(one, BeamSearched) and one.is_open}
        if not open_searches:
            break
        asked = [rows[k] for k in open_searches]
        requests = [
            Request(row["prompt"], images_of(row), search.path.text, n, derive_seed(seed, "search", row["id"], stage))
            for row, search in zip(asked, open_searches.values(), strict=True)
        ]
        drawn = engine.sample(requests, sampling_params)
        is_last = stage == max_steps
        candidates = [
            [] if isinstance(samples, Failure) else _whole_parts(search, samples, only_answers=is_last)
            for search, samples in zip(open_searches.values(), drawn, strict=True)
        ]
        scores = _part_scores(process_reward, asked, candidates)
        problem = TOO_LONG if is_last else MALFORMED
        for (k, search), samples, paths, of_paths in zip(open_searches.items(), drawn, candidates, scores, strict=True):
            searches[k] = (
                samples if isinstance(samples, Failure) else _advance(search, samples, paths, of_paths, problem)
            )
    return searches


def part_sampling_params(sampling_params: SamplingParams, *, n: int, max_steps: int) -> SamplingParams:
    """Sampling parameters for one part: sampling stops at the end of a step or the answer.

    Raises:
        ValueError: n or `max_steps` is below 1, there are stop strings, or the temperature is 0 although n candidates
            are to differ.
    """
    if n < 1 or max_steps < 1 or sampling_params.stop or (n > 1 and not sampling_params.temperature):
        raise ValueError(
            f"step_beam_search: got n={n}, max_steps={max_steps}, stop={sampling_params.stop} and "
            f"temperature={sampling_params.temperature}; expected n ≥ 1, max_steps ≥ 1, no stop strings, as the "
            "template says where parts end, and a temperature above 0 unless n is 1."
        )
    return replace(sampling_params, stop=(STEP_END, ANSWER_END))


def _whole_parts(search: BeamSearched, samples: Sequence[Sample], *, only_answers: bool) -> list[ReadPath]:
    """The candidates, each what was kept with exactly one more whole part, without duplicates."""
    paths = map(read_path, dict.fromkeys(search.path.text + sample.text for sample in samples))
    parts = search.path.steps + 1
    return [
        path
        for path in paths
        if path.problem in (None, "no_answer")
        and path.steps + (path.answer is not None) == parts
        and (path.answer is not None or not only_answers)
    ]


def _part_scores(
    process_reward: ProcessReward, rows: Sequence[Row], candidates: Sequence[Sequence[ReadPath]]
) -> list[list[float]]:
    """Score the last parts of each row's candidates.

    Not the trajectory score: the kept steps are the same in all candidates of a row, so they order nothing; and as a
    step has no answer yet, any answer would beat it by the answer's share of that score, 1 - w.
    """
    asked = [row for row, paths in zip(rows, candidates, strict=True) for _ in paths]
    chains = scorable_rows(asked, [path for paths in candidates for path in paths])
    scored = process_reward.score(chains) if chains else []
    scores = iter([float(steps[-1]) if answer is None else answer for steps, answer in scored])
    return [[next(scores) for _ in paths] for paths in candidates]


def _advance(
    search: BeamSearched,
    samples: Sequence[Sample],
    candidates: Sequence[ReadPath],
    scores: Sequence[float],
    problem: str,
) -> BeamSearched:
    """Return the search with its best candidate, or with the problem if there is none."""
    tokens = search.tokens
    for sample in samples:
        tokens = None if tokens is None or sample.tokens is None else tokens + sample.tokens
    search = search._replace(tokens=tokens)
    if not candidates:
        return search._replace(problem=problem)
    best, worst = (choose(range(len(candidates)), key=scores.__getitem__) for choose in (max, min))
    rejected = candidates[worst].text.removeprefix(search.path.text)
    return search._replace(
        path=candidates[best],
        scores=(*search.scores, scores[best]),
        worst=(*search.worst, (rejected, scores[worst])),
    )
