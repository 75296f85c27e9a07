"""The template's tokens in a tokenizer and a model (arXiv:2509.19003, appendix A).

They are ordinary added tokens, not "special" ones: `decode(skip_special_tokens=True)` keeps them, and stop strings see
them. Their ids are looked up, never assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import torch
from accelerate.utils import is_peft_model
from tokenizers import AddedToken
from torch import Tensor
from transformers import PreTrainedModel

from ..compat.chat_template import ProcessingClass, tokenizer_of
from .template import ANSWER_END, ANSWER_START, SPECIAL_TOKENS

_TABLE_6 = (
    "Start token of the reasoning process",
    "End token of the reasoning process",
    "Start token of a single reasoning step",
    "End token of a single reasoning step",
    "Start token of the reasoning step name",
    "End token of the reasoning step name",
    "Start token of the reasoning thought content",
    "End token of the reasoning thought content",
    "Start token of the reasoning reflection content",
    "End token of the reasoning reflection content",
    "Delimiter token between reasoning steps",
)
DEFINITIONS = {
    **dict(zip(SPECIAL_TOKENS, _TABLE_6, strict=False)),
    # Ours: Table 6 leaves the answer's pair out.
    ANSWER_START: "Start token of the final answer",
    ANSWER_END: "End token of the final answer",
}
"""Token → its definition (Table 6), whose embeddings it starts from."""

_RECORD = "chain_of_step_tokens"


def add_chain_tokens(
    model: PreTrainedModel,
    processing_class: ProcessingClass,
    *,
    already_trained: bool | None = None,
) -> dict[str, int]:
    """Add the template's tokens to tokenizer and model, and initialise each row with the mean of its definition's rows.

    Input and output embeddings are initialised alike, tied or not. The embeddings grow only if they have no room:
    padded vocabularies often do. The model's configuration records the tokens, so that a saved, trained or adapted
    model is left as it is when this is called again, and a tokenizer that does not fit it is refused.

    Args:
        model: changed in place. Add the tokens before any adapter.
        processing_class: the model's processor or tokenizer; changed in place.
        already_trained: only for a tokenizer that has the tokens with a model that has room for them but no record:
            True keeps the model's rows (it was trained with the tokens elsewhere), False initialises them (it is new).

    Returns:
        Token → id.

    Raises:
        ValueError: tokenizer and model do not fit each other, it cannot be known whether the rows are trained, the
            model has adapters already, or its weights are not here.
    """
    added = add_to_tokenizer(processing_class)
    tokenizer, ids = tokenizer_of(processing_class), chain_token_ids(processing_class)
    recorded = getattr(model.config, _RECORD, None)
    if recorded is not None:
        if recorded != ids:
            raise ValueError(
                f"add_chain_tokens: the model was made with the ids {recorded}, but this tokenizer has {ids}. "
                "Pass the processor that was saved with the model."
            )
        return ids
    rows = model.get_input_embeddings().weight.shape[0]
    new = [token for token in SPECIAL_TOKENS if token in added or ids[token] >= rows]
    new += _rows_to_decide_on(set(SPECIAL_TOKENS) - set(new), already_trained)
    if new:
        _check_writable(model)
    if max(ids.values()) >= rows:
        model.resize_token_embeddings(max(ids.values()) + 1, mean_resizing=False)
    definitions = {ids[token]: tokenizer(DEFINITIONS[token], add_special_tokens=False)["input_ids"] for token in new}
    for embeddings in (model.get_input_embeddings(), model.get_output_embeddings()):
        if embeddings is not None:
            _set_rows_to_means(embeddings.weight, definitions)
    setattr(model.config, _RECORD, ids)
    return ids


def add_to_tokenizer(processing_class: ProcessingClass) -> set[str]:
    """Add the template's tokens to a tokenizer alone; return those that it lacked."""
    tokenizer = tokenizer_of(processing_class)
    added = set(SPECIAL_TOKENS) - set(tokenizer.get_vocab())
    tokenizer.add_tokens(
        [AddedToken(token, special=False, normalized=False) for token in SPECIAL_TOKENS if token in added]
    )
    return added


def chain_token_ids(processing_class: ProcessingClass) -> dict[str, int]:
    """Map token → id, and check that each is one token that decoding keeps.

    Raises:
        ValueError: a token is missing, is split, or is one that `skip_special_tokens` drops.
    """
    tokenizer = tokenizer_of(processing_class)
    ids = {}
    for token in SPECIAL_TOKENS:
        encoded = tokenizer(token, add_special_tokens=False)["input_ids"]
        if len(encoded) != 1 or tokenizer.decode(encoded, skip_special_tokens=True) != token:
            raise ValueError(
                f"chain_token_ids: {token} is encoded as {encoded}, expected one id of an added token that is not "
                "special. Let add_chain_tokens(model, processor) add it, with a tokenizer that does not have it yet."
            )
        ids[token] = encoded[0]
    return ids


def part_of_token(token_ids: Tensor, end_ids: Collection[int]) -> Tensor:
    """Number the parts of chains: 0, 1, … for the steps, then the answer, each up to the token that closes it.

    As many parts as a process reward model scores come first: up to a chain's first fault nothing else is closed.

    Args:
        token_ids: (B, T) sampled tokens, padded with anything else.
        end_ids: ids of the tokens that close a step or an answer.

    Returns:
        (B, T), −1 after the last part.
    """
    ends = torch.isin(token_ids, torch.tensor(sorted(end_ids), device=token_ids.device)).long()
    part = ends.cumsum(dim=1) - ends
    return part.masked_fill(part == ends.sum(dim=1, keepdim=True), -1)


def trainable_token_indices(model: PreTrainedModel) -> dict[str, list[int]]:
    """Return the value of `LoraConfig(trainable_token_indices=...)` that trains these tokens' rows beside an adapter.

    LoRA leaves the embeddings as they are otherwise. The adapter then holds these rows; before it is loaded, its base
    needs the tokens too, and `add_chain_tokens` gives the same base the same rows. `modules_to_save` would instead
    train and save every row.

    Raises:
        ValueError: the model does not have the tokens.
    """
    ids = getattr(model.config, _RECORD, None)
    if ids is None:
        raise ValueError("trainable_token_indices: the model lacks the tokens; call add_chain_tokens first.")
    names = {module: name.rpartition(".")[2] for name, module in model.named_modules()}
    inputs, outputs = model.get_input_embeddings(), model.get_output_embeddings()
    tied = outputs is None or outputs.weight is inputs.weight  # the adapter then follows the tie by itself
    return {names[embeddings]: sorted(ids.values()) for embeddings in ((inputs,) if tied else (inputs, outputs))}


def _rows_to_decide_on(tokens: Iterable[str], already_trained: bool | None) -> list[str]:
    """Tokens, among those that tokenizer and model both have without a record, whose rows are to be initialised."""
    names = sorted(tokens)
    if names and already_trained is None:
        raise ValueError(
            f"add_chain_tokens: the tokenizer has {names[0]} and the model has a row for it, but its configuration "
            "does not say that it was ever initialised. Pass already_trained=True if the model was trained with these "
            "tokens elsewhere, already_trained=False if it is a new one."
        )
    return [] if already_trained else names


def _check_writable(model: PreTrainedModel) -> None:
    if is_peft_model(model):
        raise ValueError(
            "add_chain_tokens: the model has adapters already. Add the tokens to its base first, then the adapters, "
            "with LoraConfig(trainable_token_indices=trainable_token_indices(model))."
        )
    weight = model.get_input_embeddings().weight
    if weight.is_meta or weight.numel() == 0:  # ZeRO-3 leaves partitioned parameters empty
        raise ValueError(
            "add_chain_tokens: the embeddings' weights are not in this process (ZeRO-3, or the meta device). Add the "
            "tokens in a process without either, save model and processor, and train that checkpoint."
        )


@torch.no_grad()
def _set_rows_to_means(weight: Tensor, sources: dict[int, list[int]]) -> None:
    """Set each row of `weight` (V, D) to the mean of its source rows, taken in single precision."""
    for row, source in sources.items():
        weight[row] = weight[source].float().mean(dim=0).to(weight.dtype)
