"""Other data beside the trajectories: captions (arXiv:2507.16814, appendix D, Table A2), general visual data and text
alone (Table A3).

rows = with_captions(made.rows, "beside")
rows = mix({"sophia": made.rows, "visual": visual, "text": text}, {"sophia": 0.5, "visual": 0.3, "text": 0.2})
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from datasets import Dataset, Features, Image, List, Value, concatenate_datasets

from ..data.images import stored_images
from ..data.mixed_sources import share_counts
from ..data.row_sources import read_completions
from ..data.rows import MESSAGES
from ..jobs.source_rows import ROWS_A_BATCH
from ..messages import completion_text, plain_messages
from .prompts import CAPTION_PROMPT, prompt_for
from .rewarded_rows import finite_reward

CAPTIONS_AS_DATA = ("none", "beside", "before")

_FEATURES = {
    "prompt": MESSAGES,
    "images": List(Image(mode="RGB")),  # the type that load_rows gives images
    "completion": Value("string"),
    "reward": Value("float64"),
}
_LOGPROBS = {"behavior_logps": List(Value("float32"))}


def mix(
    parts: Mapping[str, Dataset],
    shares: Mapping[str, float],
    *,
    thinking_prompt: str | None = None,
    seed: int = 0,
) -> Dataset:
    """Mix data sets in given shares, as many rows as the parts allow, in random order.

    Rows of reward 0 train nothing, and are left out: if they were counted, their part would have less than its share.

    The result has `prompt`, `images` (empty for text alone), `completion` (a string), `reward`, and `behavior_logps` if
    all parts have them. Images are copied as they are stored.

    Args:
        parts: name → rows with `prompt` (messages, or a string for one of the user; of parts images come first) and
            `completion` (a string, or one message of the assistant), and optionally `images` (or `image`), `reward` (1
            by default) and `behavior_logps`. Other columns are left out.
        shares: name → share of the result's rows; they sum to 1.
        thinking_prompt: system message of rows that think in tags, in the place of their own; `None`: as the rows are.
        seed: seed of the selection and the order of rows.

    Raises:
        ValueError: a part has no share, the shares do not sum to 1, or rows lack columns or have no finite reward.
    """
    _check(parts, shares)
    parts = {name: _rewarded(name, part) for name, part in parts.items()}
    counts = share_counts({name: len(part) for name, part in parts.items()}, shares)
    logprobs = _LOGPROBS if all("behavior_logps" in part.column_names for part in parts.values()) else {}
    features = Features({**_FEATURES, **logprobs})
    mixed = [
        _unified(name, part.shuffle(seed=seed).select(range(counts[name])), features, thinking_prompt)
        for name, part in parts.items()
    ]
    return concatenate_datasets(mixed).shuffle(seed=seed)


def mix_in(
    rows: Dataset,
    parts: Mapping[str, Mapping[str, Any]],
    *,
    thinking_prompt: str | None = None,
    seed: int = 0,
) -> Dataset:
    """Mix data sets into the trajectories, which take the share that is left (Table A3).

    Args:
        rows: the trajectories, as `mix` takes a part.
        parts: name → `dataset`, a Hub id or file of completions, and its `share` of the result's rows.
        thinking_prompt, seed: arguments of `mix`.

    Raises:
        ValueError: a part is called "trajectories", or `mix` refuses shares or rows.
    """
    if "trajectories" in parts:
        raise ValueError("mix_in: 'trajectories' is the name of the rows themselves. Fix: rename the other part.")
    datasets = {name: read_completions(one["dataset"]) for name, one in parts.items()}
    shares = {name: one["share"] for name, one in parts.items()}
    shares = {"trajectories": 1 - sum(shares.values()), **shares}
    return mix({"trajectories": rows, **datasets}, shares, thinking_prompt=thinking_prompt, seed=seed)


def with_captions(rows: Dataset, how: str, *, caption_prompt: str = CAPTION_PROMPT) -> Dataset:
    """Add the whole captions whose trajectories are all right, R(c) = 1, to the trajectories (Table A2).

    What the length limit cut has no end, and whoever learns from it learns to stop in mid-sentence.

    | how      | in the paper | rows                                                                                 |
    |----------|--------------|--------------------------------------------------------------------------------------|
    | `none`   | SOPHIA       | the trajectories alone, which the paper finds best                                   |
    | `beside` | SOPHIA DI    | and each of these captions, of reward 1, as what is said to `caption_prompt`         |
    | `before` | SOPHIA H     | these captions and an empty line before their trajectories; the others as they are   |

    The paper calls the data of DI "composed of the query, image, and caption"; that the query is what the caption was
    sampled with, and not the question, is our reading.

    Args:
        rows: as `make_off_policy_data` makes them; with `unselected` rows all captions are among them.
        how: one of `CAPTIONS_AS_DATA`.
        caption_prompt: prompt that the captions were sampled with; Fig. A2 by default.

    Raises:
        ValueError: `how` is unknown, columns are missing, or there are log-probabilities, which captions do not have.
    """
    if how not in CAPTIONS_AS_DATA:
        raise ValueError(f"with_captions: how is {how!r}, expected one of {CAPTIONS_AS_DATA}.")
    if how == "none":
        return rows
    missing = sorted({"id", "caption", "caption_reward"} - set(rows.column_names))
    if missing:
        raise ValueError(
            f"with_captions: the rows have the columns {rows.column_names} and lack {missing}, which "
            "`mmreason trajectories` writes."
        )
    if "behavior_logps" in rows.column_names:
        raise ValueError(
            "with_captions: the rows have behavior_logps, and captions have none. Fix: sample without --logprobs, or "
            "remove the column."
        )
    if how == "before":
        return rows.map(_with_caption_before, features=rows.features, writer_batch_size=ROWS_A_BATCH)
    captions = [id_.rpartition(".")[0] for id_ in rows["id"]]  # "<id of the question>#<caption>.<trajectory>"
    first: dict[str, int] = {}
    for position, row in enumerate(rows.select_columns(["caption", "caption_reward"])):
        if _teaches(row):
            first.setdefault(captions[position], position)
    prompt = [{"role": "user", "content": caption_prompt}]

    def as_caption(row: Mapping[str, Any]) -> dict[str, Any]:
        caption = row["id"].rpartition(".")[0]
        return {"id": caption, "prompt": prompt, "completion": row["caption"], "reward": 1.0}

    chosen = rows.select(first.values())
    described = chosen.map(as_caption, features=rows.features, writer_batch_size=ROWS_A_BATCH)
    return concatenate_datasets([rows, described])


def _with_caption_before(row: Mapping[str, Any]) -> dict[str, Any]:
    text = completion_text(row["completion"], f"row {row['id']!r}")
    return {"completion": f"{row['caption']}\n\n{text}" if _teaches(row) else text}


def _teaches(row: Mapping[str, Any]) -> bool:
    """Whether a row's caption is whole, and all trajectories from it are right."""
    return row["caption_reward"] == 1 and row["caption"] is not None


def _check(parts: Mapping[str, Dataset], shares: Mapping[str, float]) -> None:
    if not parts or parts.keys() != shares.keys():
        raise ValueError(f"mix: parts are {sorted(parts)} and shares {sorted(shares)}, expected a share of every part.")
    if any(not 0 < share <= 1 for share in shares.values()) or not math.isclose(sum(shares.values()), 1, abs_tol=1e-6):
        raise ValueError(f"mix: shares are {dict(shares)}, expected each to be above 0, and 1 as their sum.")
    for name, part in parts.items():
        missing = sorted({"prompt", "completion"} - set(part.column_names))
        if missing:
            raise ValueError(f"mix: part {name!r} has the columns {part.column_names} and lacks {missing}.")


def _rewarded(name: str, part: Dataset) -> Dataset:
    """Select the rows with a non-zero reward."""
    if "reward" in part.column_names:
        rewards = enumerate(part.with_format(None)["reward"][:])
        where = f"of part {name!r}"
        part = part.select([n for n, reward in rewards if finite_reward(reward, f"mix: the reward of row {n} {where}")])
    if not len(part):
        raise ValueError(f"mix: part {name!r} has no row with a reward; remove it and redistribute its share.")
    return part


def _unified(name: str, part: Dataset, features: Features, thinking_prompt: str | None) -> Dataset:
    """Select these columns, images as stored."""

    def unify(row: Mapping[str, Any]) -> dict[str, Any]:
        prompt = row["prompt"]
        text = completion_text(row["completion"], f"part {name!r}, prompt {str(prompt)[:60]!r}")
        columns = {
            "prompt": prompt_for(plain_messages(prompt, f"mix: part {name!r}"), text, thinking_prompt),
            "images": stored_images(row),
            "completion": text,
            "reward": row.get("reward", 1.0),
            "behavior_logps": row.get("behavior_logps"),
        }
        return {column: columns[column] for column in features}

    def unify_batch(table: pa.Table) -> dict[str, list[Any]]:
        rows = [unify(row) for row in table.to_pylist()]
        return {column: [row[column] for row in rows] for column in features}

    mixed = part.with_format("arrow").map(  # a table's rows hold images as they are stored
        unify_batch,
        batched=True,
        batch_size=ROWS_A_BATCH,
        writer_batch_size=ROWS_A_BATCH,
        remove_columns=part.column_names,
        features=features,
        desc=f"Mixing in {name}",
    )
    return mixed.with_format(None)
