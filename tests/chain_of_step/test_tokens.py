"""The template's tokens in real tokenizers and models: one id each, rows that start as means, kept through saving."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from short_chains import chain
from solution_chains import chain_of_steps
from support import ids_of, load
from tokenizers import AddedToken
from torch.testing import assert_close

from trl_mmreason.chain_of_step.template import SPECIAL_TOKENS, parse_chain
from trl_mmreason.chain_of_step.tokens import (
    DEFINITIONS,
    add_chain_tokens,
    chain_token_ids,
    part_of_token,
    trainable_token_indices,
)
from trl_mmreason.generation.engine import Request, SamplingParams
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import make_problems

STEP_END = "<|reasoning_step_end|>"
CHAIN = chain_of_steps(solve(make_problems(["adding"], 1, seed=0)[0]))


def build(family="qwen2_5_vl", *, tied=False, spare_rows=0):
    """A model whose output embeddings differ from its input embeddings unless they are tied."""
    model, processor = build_model(family)
    if tied:
        model.config.tie_word_embeddings = model.config.text_config.tie_word_embeddings = True
        model.tie_weights()
    if spare_rows:
        model.resize_token_embeddings(len(processor.tokenizer) + spare_rows, mean_resizing=False)
    return model, processor


def rows_of(model):
    """Copies of the input and the output embeddings."""
    return [e.weight.detach().clone() for e in (model.get_input_embeddings(), model.get_output_embeddings())]


def assert_rows_are_means(model, processor, before):
    """Every row that was there is as it was, and each token's is the mean of its definition's old rows."""
    ids = chain_token_ids(processor)
    for old, new in zip(before, rows_of(model), strict=True):
        untouched = [row for row in range(len(old)) if row not in ids.values()]
        assert torch.equal(new[untouched], old[untouched])
        for token, row in ids.items():
            definition = processor.tokenizer(DEFINITIONS[token], add_special_tokens=False)["input_ids"]
            assert len(definition) > 1
            assert_close(new[row], torch.stack([old[i] for i in definition]).mean(0))


TABLE_6 = """\
<|reasoning_start|>: Start token of the reasoning process
<|reasoning_end|>: End token of the reasoning process
<|reasoning_step_start|>: Start token of a single reasoning step
<|reasoning_step_end|>: End token of a single reasoning step
<|reasoning_step_name_start|>: Start token of the reasoning step name
<|reasoning_step_name_end|>: End token of the reasoning step name
<|reasoning_step_thought_start|>: Start token of the reasoning thought content
<|reasoning_step_thought_end|>: End token of the reasoning thought content
<|reasoning_step_reflection_start|>: Start token of the reasoning reflection content
<|reasoning_step_reflection_end|>: End token of the reasoning reflection content
<|reasoning_proceed|>: Delimiter token between reasoning steps"""


def test_the_definitions_are_those_of_table_6():
    """The paper's eleven; the answer's pair is not in the table."""
    papers = dict(line.split(": ") for line in TABLE_6.splitlines())
    assert {token: definition for token, definition in DEFINITIONS.items() if "answer" not in token} == papers


def test_every_token_has_its_definition():
    assert set(DEFINITIONS) == set(SPECIAL_TOKENS)
    for token, definition in DEFINITIONS.items():
        kind = {"start|>": "Start", "end|>": "End", "proceed|>": "Delimiter"}[token.rpartition("_")[2]]
        assert definition.startswith(f"{kind} token ")
        words = {"name", "thought", "reflection", "answer"}
        assert words & set(definition.split()) == words & set(token.strip("<|>").split("_"))


@pytest.mark.parametrize("tied", [False, True])
def test_rows_start_at_the_mean_of_their_definitions_and_survive_saving(family, tied, tmp_path):
    model, processor = build(family, tied=tied)
    before, size = rows_of(model), len(processor.tokenizer)
    ids = add_chain_tokens(model, processor)
    assert list(ids) == list(SPECIAL_TOKENS)
    assert list(ids.values()) == list(range(size, size + 13))
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied
    assert {len(rows) for rows in rows_of(model)} == {model.config.text_config.vocab_size} == {size + 13}
    assert_rows_are_means(model, processor, before)

    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    reloaded, its_processor = load(str(tmp_path))
    for saved, loaded in zip(rows_of(model), rows_of(reloaded), strict=True):
        assert torch.equal(saved, loaded)
    assert chain_token_ids(its_processor) == ids
    assert add_chain_tokens(reloaded, its_processor) == ids


def test_a_chain_is_encoded_with_these_ids_and_decoded_as_it_was(family):
    model, processor = build(family)
    ids = add_chain_tokens(model, processor)
    encoded = processor.tokenizer(CHAIN, add_special_tokens=False)["input_ids"]
    for token in SPECIAL_TOKENS:
        assert encoded.count(ids[token]) == CHAIN.count(token) > 0
    decoded = processor.tokenizer.decode(encoded, skip_special_tokens=True)
    assert decoded == CHAIN
    assert parse_chain(decoded).answer
    with torch.no_grad():
        assert model(input_ids=torch.tensor([encoded])).logits.isfinite().all()


def test_a_stop_text_ends_an_answer_behind_a_step():
    model, processor = build()
    ids = add_chain_tokens(model, processor)
    with torch.no_grad():  # so that an untrained model often says it
        model.get_output_embeddings().weight[ids[STEP_END]] *= 30
    request = Request([{"role": "user", "content": "3+4=?"}], prefix="<|reasoning_start|>", n=20)
    answers = TransformersEngine(model, processor).sample([request], SamplingParams(16, stop=(STEP_END,)))[0]
    stopped = [answer for answer in answers if STEP_END in answer.text]
    assert len(stopped) > 5
    for answer in stopped:
        assert answer.finish_reason == "stop"
        assert answer.text.index(STEP_END) == len(answer.text) - len(STEP_END)
        assert answer.token_ids.index(ids[STEP_END]) == len(answer.token_ids) - 1


def test_trained_rows_stay_as_they_are_when_it_is_called_again():
    model, processor = build()
    ids = add_chain_tokens(model, processor)
    with torch.no_grad():
        model.get_input_embeddings().weight += 1
    trained = rows_of(model)
    assert add_chain_tokens(model, processor) == ids
    assert all(torch.equal(a, b) for a, b in zip(trained, rows_of(model), strict=True))
    # a processor that has never seen them gets the same ids, and the model is still left alone
    assert add_chain_tokens(model, build()[1]) == ids
    assert all(torch.equal(a, b) for a, b in zip(trained, rows_of(model), strict=True))


@pytest.mark.parametrize(("spare_rows", "grown_by"), [(5, 8), (13, 0), (40, 0)])
def test_a_padded_vocabulary_grows_only_as_far_as_it_has_to(spare_rows, grown_by):
    model, processor = build(spare_rows=spare_rows)
    before = rows_of(model)
    add_chain_tokens(model, processor)
    assert len(model.get_input_embeddings().weight) == len(before[0]) + grown_by
    assert_rows_are_means(model, processor, before)


def test_a_second_model_with_the_same_processor():
    _, processor = pair = build()
    add_chain_tokens(*pair)
    model, _ = build()
    before = rows_of(model)
    add_chain_tokens(model, processor)  # it has no rows for the tokens, so they are new
    assert_rows_are_means(model, processor, before)


def test_rows_that_nobody_has_recorded_are_not_guessed_about():
    _, processor = pair = build()
    ids = add_chain_tokens(*pair)
    model, _ = build(spare_rows=40)
    before = rows_of(model)
    with pytest.raises(ValueError, match="already_trained=True if"):
        add_chain_tokens(model, processor)
    elsewhere = copy.deepcopy(model)
    assert add_chain_tokens(elsewhere, processor, already_trained=True) == ids
    assert all(torch.equal(a, b) for a, b in zip(before, rows_of(elsewhere), strict=True))
    assert add_chain_tokens(model, processor, already_trained=False) == ids
    assert_rows_are_means(model, processor, before)


def test_a_processor_with_other_ids_is_refused():
    model, processor = build()
    add_chain_tokens(model, processor)
    _, other = build()
    other.tokenizer.add_tokens(["<|something_else|>"])
    with pytest.raises(ValueError, match="Pass the processor that was saved with the model"):
        add_chain_tokens(model, other)


def test_missing_and_special_tokens_are_refused():
    model, processor = build()
    with pytest.raises(ValueError, match=r"<\|reasoning_start\|> is encoded as \[\d+, .*expected one id"):
        chain_token_ids(processor)
    processor.tokenizer.add_tokens([AddedToken(STEP_END, special=True)], special_tokens=True)
    with pytest.raises(ValueError, match=r"<\|reasoning_step_end\|> is encoded as \[\d+\], expected.*not special"):
        add_chain_tokens(model, processor)


def test_weights_that_are_not_here_are_refused():
    model, processor = build()
    model.get_input_embeddings().weight.data = torch.empty(0)  # as ZeRO-3 leaves a parameter it has partitioned
    with pytest.raises(ValueError, match="weights are not in this process"):
        add_chain_tokens(model, processor)


@pytest.mark.parametrize("tied", [False, True])
def test_an_adapter_trains_these_rows_and_no_others_and_is_loaded_on_the_same_base(family, tied, tmp_path):
    base, processor = build(family, tied=tied)
    ids = add_chain_tokens(base, processor)
    indices = trainable_token_indices(base)
    assert indices == dict.fromkeys(["embed_tokens"] if tied else ["embed_tokens", "lm_head"], sorted(ids.values()))
    before = rows_of(base)
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=indices))
    # Something behind the chain, so that its last token has a gradient as an input too.
    inputs = torch.tensor([processor.tokenizer(f"{CHAIN}.", add_special_tokens=False)["input_ids"]])
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    model(input_ids=inputs, labels=inputs).loss.backward()
    optimizer.step()
    with torch.no_grad():
        expected = model(input_ids=inputs).logits
    model.save_pretrained(tmp_path)

    fresh, its_processor = build(family, tied=tied)
    add_chain_tokens(fresh, its_processor)
    loaded = PeftModel.from_pretrained(fresh, tmp_path)
    with torch.no_grad():
        assert_close(loaded(input_ids=inputs).logits, expected)
    for old, new in zip(before, rows_of(loaded.merge_and_unload()), strict=True):
        assert (old != new).any(dim=1).nonzero().flatten().tolist() == sorted(ids.values())


def test_adapters_come_after_the_tokens():
    base, processor = build()
    with pytest.raises(ValueError, match="call add_chain_tokens first"):
        trainable_token_indices(base)
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="Add the tokens to its base first"):
        add_chain_tokens(model, processor)
    base, processor = build()
    ids = add_chain_tokens(base, processor)
    assert add_chain_tokens(get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])), processor) == ids


def test_the_part_of_its_chain_that_a_token_belongs_to(bases):
    """Two steps and an answer, each up to the token that closes it; the end of the turn and the padding to none."""
    processor = load(bases("qwen2_5_vl"))[1]
    ids = chain_token_ids(processor)
    first, second = (chain(*thoughts, answer=None) for thoughts in (["3"], ["3", "4 and more"]))
    texts = [first, second.removeprefix(first), chain("3", "4 and more").removeprefix(second)]
    lengths = [len(ids_of(processor, text)) for text in texts]
    rows = [[*ids_of(processor, "".join(texts)), 0, 0], [0] * (sum(lengths) + 2)]
    expected = [place for place, length in enumerate(lengths) for _ in range(length)]
    found = part_of_token(torch.tensor(rows), {ids[STEP_END], ids["<|answer_end|>"]})
    assert found.tolist() == [[*expected, -1, -1], [-1] * len(rows[1])]
