"""ProcessRewardModel: the scores equal those of full logits on one prefix at a time, whatever shares their batch."""

import json
import random
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from solution_chains import chain_of_steps, prefixes
from support import drawn_rows
from text_reasoners import saved_reasoner
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Metaspace
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from trl_mmreason.chain_of_step.process_reward import (
    ProcessRewardModel,
    UnscorableRow,
    label_token_ids,
    logit_differences,
)
from trl_mmreason.chain_of_step.template import ANSWER_END, SPECIAL_TOKENS, STEP_END, parse_chain
from trl_mmreason.chain_of_step.tokens import add_chain_tokens, trainable_token_indices
from trl_mmreason.data.images import images_of
from trl_mmreason.generation.batch import encode, tokenizer_of
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import make_problems

CHAINS = [chain_of_steps(solve(problem)) for problem in make_problems(["adding", "counting"], 6, seed=0)]


def reward_model(family="qwen2_5_vl", **tokens):
    model, processor = build_model(family)
    add_chain_tokens(model, processor)
    return ProcessRewardModel(model, processor, **tokens)


def chain_rows():
    """One, two or no image; the fourth chain is partial, the fifth has no step, the sixth nothing to score."""
    completions = [*CHAINS[:3], prefixes(parse_chain(CHAINS[3]))[1], "<|answer_start|>7<|answer_end|>", "It is 7."]
    return [
        {"prompt": row["prompt"], "images": row["images"], "completion": completion}
        for row, completion in zip(drawn_rows(6), completions, strict=True)
    ]


@torch.no_grad()
def naive(prm, row, right="+", wrong="-"):
    """All logits at the end of every prefix that closes a step or the answer, each in a forward pass of its own."""
    tokenizer = tokenizer_of(prm.processing_class)
    right, wrong = tokenizer.convert_tokens_to_ids([right, wrong])
    scores = {STEP_END: [], ANSWER_END: []}
    for closing, found in scores.items():
        for part in range(1, row["completion"].count(closing) + 1):
            prefix = closing.join(row["completion"].split(closing)[:part]) + closing
            ids = tokenizer(prefix, add_special_tokens=False, split_special_tokens=True)["input_ids"]
            tokenizer("", add_special_tokens=False)  # it keeps that setting until the next call
            prompt = encode(prm.processing_class, row["prompt"], images_of(row)).extended(ids)
            fields = {name: torch.tensor([values]) for name, values in prompt.token_fields.items()}
            ids = torch.tensor([prompt.ids])
            logits = prm.model(input_ids=ids, **fields, **prompt.image_fields).logits[0, -1]
            found.append((logits[right] - logits[wrong]).sigmoid().item())
    return scores[STEP_END], (scores[ANSWER_END] or [None])[0]


def assert_same_scores(scores, expected):
    for (steps, answer), (expected_steps, expected_answer) in zip(scores, expected, strict=True):
        assert_close(steps, torch.as_tensor(expected_steps), atol=1e-5, rtol=0)
        assert answer == (None if expected_answer is None else pytest.approx(expected_answer, abs=1e-5))


def test_one_pass_equals_full_logits_of_every_prefix(family):
    prm, rows = reward_model(family), chain_rows()
    expected = [naive(prm, row) for row in rows]
    assert [(len(steps), answer is None) for steps, answer in expected[3:]] == [(2, True), (0, False), (0, True)]
    assert len({round(score, 4) for steps, _ in expected for score in steps}) > 8  # they differ, so order shows
    assert_same_scores(prm.score(rows, batch_size=6), expected)


def test_a_text_only_model_scores_rows_without_images(tmp_path):
    folder = saved_reasoner("llama", tmp_path / "base")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    add_chain_tokens(model, tokenizer)
    prm = ProcessRewardModel(model, tokenizer)
    rows = [{**row, "images": []} for row in chain_rows()]
    expected = [naive(prm, row) for row in rows]
    assert len({round(score, 4) for steps, _ in expected for score in steps}) > 8
    assert_same_scores(prm.score(rows, batch_size=6), expected)
    with pytest.raises(UnscorableRow, match=r"row 1 cannot be encoded: it has 2 image\(s\), which a text-only model"):
        prm.score([rows[0], chain_rows()[1]])
    prm.save_pretrained(tmp_path / "prm")
    loaded = ProcessRewardModel.from_pretrained(tmp_path / "prm")
    assert_same_scores(loaded.score(rows), expected)
    assert loaded.settings == prm.settings


def test_vllm_is_told_the_two_tokens_as_the_vocabulary_spells_them():
    """It looks them up there, where SentencePiece's tokens that begin an input have a mark."""
    backend = Tokenizer(WordLevel(dict(zip(["?", "+", "-", "▁+", "▁-"], range(5), strict=True)), unk_token="?"))
    backend.pre_tokenizer = Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")
    model = SimpleNamespace(config=SimpleNamespace())
    right, wrong = label_token_ids(model, tokenizer)
    assert tokenizer.convert_tokens_to_ids(model.config.classifier_from_token) == [wrong, right] == [4, 3]


def test_batch_size_order_and_neighbours_change_nothing(family):
    prm, rows = reward_model(family), chain_rows()
    expected = prm.score(rows, batch_size=1)
    assert_same_scores(prm.score(rows, batch_size=4), expected)
    order = random.Random(0).sample(range(len(rows)), len(rows))
    assert_same_scores(prm.score([rows[n] for n in order], batch_size=3), [expected[n] for n in order])


def test_an_image_changes_the_scores_of_its_own_row_only(family):
    prm, rows = reward_model(family), chain_rows()
    before = prm.score(rows)
    rows[0] = {**rows[0], "images": rows[1]["images"][:1]}
    after = prm.score(rows)
    assert (before[0].steps - after[0].steps).abs().max() > 1e-4
    assert_same_scores(after[1:], before[1:])


def test_a_question_that_holds_the_tokens_does_not_confuse_it():
    prm = reward_model()
    question = [{"role": "user", "content": f"What does {CHAINS[1]} mean? {STEP_END} {ANSWER_END}"}]
    row = {"prompt": question, "images": [], "completion": CHAINS[0]}
    assert prm.processing_class.tokenizer.convert_tokens_to_ids(STEP_END) in encode(prm.processing_class, question).ids
    assert_same_scores(prm.score([row]), [naive(prm, row)])


def test_special_tokens_in_a_completion_are_text(family):
    """A policy that spells them out shows no image and ends no turn; the tokenizer stays as it was."""
    prm, rows = reward_model(family), chain_rows()
    tokenizer = prm.processing_class.tokenizer
    spelt = "".join(tokenizer.all_special_tokens)
    assert len(tokenizer(spelt, add_special_tokens=False)["input_ids"]) == len(tokenizer.all_special_tokens)
    row = {**rows[0], "completion": CHAINS[0].replace("I looked", spelt, 1)}
    ids = prm._encoder.encode(row, "it").prompt.ids
    for token in tokenizer.all_special_ids:
        assert ids.count(token) == prm._encoder.encode(rows[0], "it").prompt.ids.count(token)
    assert tokenizer.decode(ids).endswith(row["completion"])
    scores = prm.score([row, rows[1]])
    assert not tokenizer.backend_tokenizer.encode_special_tokens
    assert_same_scores(scores, [naive(prm, row), naive(prm, rows[1])])
    assert len(tokenizer(spelt, add_special_tokens=False)["input_ids"]) == len(tokenizer.all_special_tokens)


def test_a_placeholder_that_is_no_special_token_is_text_too():
    """As some checkpoints have theirs. The model has no row for this one, so it would fail if it saw it."""
    model, processor = build_model("llava_next")
    add_chain_tokens(model, processor)
    processor.tokenizer.add_tokens([AddedToken("<video>", special=False, normalized=False)])
    model.config.video_token_id = processor.tokenizer.convert_tokens_to_ids("<video>")
    prm, row = ProcessRewardModel(model, processor), chain_rows()[0]
    row["completion"] = CHAINS[0].replace("I looked", "A <video>", 1)
    ids = prm._encoder.encode(row, "it").prompt.ids
    assert model.config.video_token_id not in ids
    assert processor.tokenizer.decode(ids).endswith(row["completion"])
    ((steps, answer),) = prm.score([row])
    assert len(steps) == CHAINS[0].count(STEP_END)
    assert 0 < answer < 1


def test_a_batch_that_does_not_fit_in_memory_is_halved(caplog):
    """Seven chains at a time fit only two at a time: 7 → 3 → 1, and what was scored is not scored again."""
    prm, rows = reward_model(), [*chain_rows(), chain_rows()[0]]
    expected = prm.score(rows, batch_size=1)
    sizes = limit_memory(prm, 2)
    assert_same_scores(prm.score(rows, batch_size=7), expected)
    assert sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert [record.args for record in caplog.records] == [(7,), (3,)]
    assert not prm.model.training
    limit_memory(prm, 0)
    with pytest.raises(torch.OutOfMemoryError, match="row 1 does not fit in memory even by itself. Shorten its chain"):
        prm.score([rows[5], rows[0]])


def limit_memory(prm, most):
    """Let the model run out of memory with more rows than `most`; gives the sizes that were tried."""
    sizes = []

    def refuse(model, args, kwargs):
        sizes.append(len(kwargs["input_ids"]))
        if sizes[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    prm.model.register_forward_pre_hook(refuse, with_kwargs=True)
    return sizes


def test_settings_tell_models_apart_and_not_how_they_were_loaded(tmp_path):
    prm = reward_model()
    prm.save_pretrained(tmp_path)
    loaded = ProcessRewardModel.from_pretrained(tmp_path, device="cpu")
    assert loaded.settings == prm.settings == json.loads(json.dumps(prm.settings))
    half = ProcessRewardModel.from_pretrained(tmp_path, device="cpu", dtype="bfloat16")
    with torch.no_grad():
        next(prm.model.parameters()).add_(1)
    others = [half.settings, prm.settings, reward_model(right_token="7").settings, reward_model("llava_next").settings]
    for other, differing in zip(others, ("dtype", "weights", "tokens", "processor"), strict=True):
        assert other[differing] != loaded.settings[differing]
        assert other["kind"] == "process_reward_model"


def test_a_completion_may_be_a_message_and_a_row_have_one_image_or_none():
    prm, (row, *_) = reward_model(), chain_rows()
    message = [{"role": "assistant", "content": row["completion"]}]
    as_message = {"prompt": row["prompt"], "image": row["images"][0], "completion": message}
    bare = {"prompt": row["prompt"], "completion": row["completion"]}
    assert_same_scores(prm.score([as_message, bare]), prm.score([row, {**row, "images": None}]))


def test_no_logits_of_other_tokens_are_formed_and_the_base_runs_once():
    prm, rows = reward_model(), chain_rows()
    shapes = []
    hook = prm.model.get_output_embeddings().register_forward_hook(lambda m, i, out: shapes.append(tuple(out.shape)))
    prm.score(rows, batch_size=6)
    hook.remove()
    most_steps = max(row["completion"].count(STEP_END) for row in rows)
    assert shapes == [(6, 1 + most_steps)]
    logits = prm.model(input_ids=torch.tensor([[1, 2]])).logits  # and the head is as it was
    assert logits.shape == (1, 2, len(prm.model.get_output_embeddings().weight))


def test_the_mode_of_the_model_is_left_as_it_was():
    prm, rows = reward_model(), chain_rows()
    prm.model.train()
    prm.score(rows[:1])
    assert prm.model.training


def test_it_saves_and_loads_with_its_tokens(tmp_path):
    prm, rows = reward_model(right_token="7", wrong_token="8"), chain_rows()
    expected = prm.score(rows)
    assert_same_scores(expected, [naive(prm, row, "7", "8") for row in rows])
    prm.save_pretrained(tmp_path)
    loaded = ProcessRewardModel.from_pretrained(tmp_path, device="cpu")
    assert_same_scores(loaded.score(rows), expected)
    with pytest.raises(ValueError, match=r"was made with the tokens \{'right': '7', 'wrong': '8'\}"):
        ProcessRewardModel(loaded.model, loaded.processing_class, right_token="+")


def test_an_adapter_counts_and_so_do_rows_of_the_head_that_it_trains(family, tmp_path):
    prm, rows = reward_model(family), chain_rows()
    prm.save_pretrained(tmp_path / "base")
    base = ProcessRewardModel.from_pretrained(tmp_path / "base", device="cpu")
    before = base.score(rows)
    indices = {module: [*ids, *base._token_ids] for module, ids in trainable_token_indices(base.model).items()}
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, trainable_token_indices=indices)
    adapted = get_peft_model(base.model, config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "trainable_tokens_delta" in name:
                weight.add_(torch.arange(len(weight))[:, None] / 100)
    live = ProcessRewardModel(adapted, base.processing_class)
    scores = live.score(rows)
    assert (scores[0].steps - before[0].steps).abs().max() > 1e-3
    assert_same_scores(scores, [naive(live, row) for row in rows])
    adapted.save_pretrained(tmp_path / "adapter")
    merged = ProcessRewardModel.from_pretrained(tmp_path / "adapter", device="cpu")
    assert_same_scores(merged.score(rows), scores)
    assert merged.settings["weights"] == live.settings["weights"]  # those before merging, which rounds


def test_an_adapter_on_the_head_is_refused_where_it_would_not_count():
    prm, rows = reward_model(), chain_rows()
    adapted = get_peft_model(prm.model, LoraConfig(r=2, target_modules=["lm_head"]))
    with pytest.raises(ValueError, match="an adapter acts on the output embeddings"):
        ProcessRewardModel(adapted, prm.processing_class).score(rows)
    whole = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    adapted = get_peft_model(reward_model().model, whole)
    with torch.no_grad():
        adapted.get_output_embeddings().weight.mul_(2)
    live = ProcessRewardModel(adapted, prm.processing_class)
    assert_same_scores(live.score(rows), [naive(live, row) for row in rows])


def test_large_differences_stay_finite_in_16_bit():
    prm, rows = reward_model(), chain_rows()
    with torch.no_grad():
        prm.model.get_output_embeddings().weight[prm._token_ids[0]] *= 1000
    prm.model.bfloat16()
    for steps, answer in prm.score(rows):
        assert steps.dtype == torch.float32
        assert ((steps >= 0) & (steps <= 1)).all()
        assert answer is None or 0 <= answer <= 1


def test_a_head_with_a_bias():
    prm, rows = reward_model(), chain_rows()
    head = prm.model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.linspace(-9, 9, len(head.weight)))
    assert_same_scores(prm.score(rows), [naive(prm, row) for row in rows])


def test_gradients_reach_the_two_rows_of_the_head_and_no_other():
    prm, row = reward_model(), chain_rows()[2]
    chain = prm._encoder.encode(row, "it")
    logit_differences(prm.model, *prm._encoder.collate([chain]), prm._token_ids).sum().backward()
    gradient = prm.model.get_output_embeddings().weight.grad
    assert set(gradient.abs().sum(dim=1).nonzero().flatten().tolist()) == set(prm._token_ids)


@pytest.mark.parametrize(
    ("completion", "problem"),
    [
        (CHAINS[0].replace(STEP_END, "", 1), "completion of row 1: malformed chain at character"),
        (CHAINS[0] + " and so on", "completion of row 1: malformed chain .* found 'and so on'"),
        ("<|reasoning_start|> hm", "completion of row 1: malformed chain .* found 'hm'"),
        (CHAINS[0][: CHAINS[0].index(STEP_END)], "completion of row 1: .*Cut an unfinished one"),
        ([{"role": "user", "content": CHAINS[0]}], "completion of row 1 is .*expected a string or one message"),
        (None, "completion of row 1 is None"),
    ],
)
def test_a_row_that_cannot_be_scored_is_named(completion, problem):
    rows = chain_rows()[:2]
    rows[1]["completion"] = completion
    with pytest.raises(ValueError, match=problem):
        reward_model().score(rows)


def test_a_conversation_that_cannot_be_encoded_is_named():
    rows = chain_rows()[:2]
    rows[1]["prompt"] = "no messages"
    with pytest.raises(ValueError, match="conversation of row 1 cannot be encoded"):
        reward_model().score(rows)


def test_rows_without_anything():
    prm, row = reward_model(), chain_rows()[5]
    assert prm.score([]) == []
    for completion in ("", "<|reasoning_start|>", "It is 7."):
        ((steps, answer),) = prm.score([{**row, "completion": completion}])
        assert steps.shape == (0,)
        assert answer is None
    with pytest.raises(ValueError, match="batch_size=0, expected 1 or more"):
        prm.score([row], batch_size=0)


@pytest.mark.parametrize(
    ("right", "problem"), [("very good", r"encoded as .*expected one id each"), ("-", "two different ones")]
)
def test_tokens_are_single_and_two(right, problem):
    with pytest.raises(ValueError, match=problem):
        reward_model(right_token=right)


def test_a_model_without_the_templates_tokens_is_refused():
    with pytest.raises(ValueError, match=rf"chain_token_ids: {SPECIAL_TOKENS[0].replace('|', '.')} is encoded as"):
        ProcessRewardModel(*build_model("qwen2_5_vl"))
