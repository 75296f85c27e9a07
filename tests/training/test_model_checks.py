"""Models that cannot be trained exactly are refused when a trainer is made, in one sentence; others cost little."""

import re

import pytest
import torch
import transformers
from all_families import FAMILIES as FAMILIES_OF_ALL
from datasets import Dataset
from every_trainer import BY_OUTCOME, DPO, make, rows_of
from exactness import Plain, rollout_difference
from further_families import aya_vision, glm_experts, internvl_experts, mllama, paligemma, saved
from packaging.version import Version
from support import drawn_rows, full_but, prepared_batch
from transformers import GPT2Config, GPT2LMHeadModel, Kosmos2Config, LlavaOnevisionConfig, Ovis2Config
from trl.trainer.utils import add_fused_lm_head

from trl_mmreason.cli.doctor.model import check_scoring
from trl_mmreason.compat.adapters import prepare_head
from trl_mmreason.compat.chat_template import next_turn_ids
from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.compat.vision_passes import ensure_image_pass
from trl_mmreason.generation.batch import Prompt
from trl_mmreason.generation.engine import Request, SamplingParams
from trl_mmreason.generation.gumbel import GumbelMaxSampler, StopTracker
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.miniature.models import FAMILIES, build_model
from trl_mmreason.training.model_checks import (
    loops_problem,
    rows_scoring_problem,
    scoring_problem,
    some_ids,
    unreached_weights,
)
from trl_mmreason.training.model_problems import rotary_problem
from trl_mmreason.training.noise import noise_of, turn_off_noise
from trl_mmreason.training.processor_checks import (
    answer_prompt_problem,
    needs_image_token,
    processor_problem,
    rows_problem,
    some_rows,
)

older = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"), reason="its configuration counts experts as TRL does"
)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folders = {}

    def get(build):
        if build not in folders:
            folders[build] = saved(build, tmp_path_factory.mktemp(build.__name__))
        return folders[build]

    return get


def prepared(build):
    torch.manual_seed(0)
    model, processor = build()
    prepare_head(model)
    add_fused_lm_head(model, temperature=0.7)
    return model, processor


# ----------------------------------------------------------------------------------------------------------- scoring


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_families_that_are_exact_pass(family, dtype):
    model, processor = prepared(lambda: build_model(family, "test"))
    model.to(dtype).train()
    assert scoring_problem(model, some_ids(processor, model), temperature=0.7) is None
    assert scoring_problem(model, some_ids(processor, model), temperature=1.0).startswith("TRL's fused LM head gives")
    assert processor_problem(processor) is None
    assert rows_problem(processor, Dataset.from_list([{"prompt": "?"}]), "train_dataset") is None
    assert model.training


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_prefix_that_is_seen_at_once_is_not_causal(dtype):
    """Of token types 0 all are prefix, as trainers continue them over an answer; of 1 they are an answer."""
    model, processor = prepared(paligemma)
    model.to(dtype)
    assert "is not causal over an answer" in scoring_problem(model, some_ids(processor, model), temperature=0.7)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_in_a_padded_batch_score_as_they_do_alone(family):
    """By hand: the model's own log-probabilities of three tokens behind each row, without padding."""
    model, processor = prepared(lambda: build_model(family, "test"))
    prompts, answer = some_rows(processor, Dataset.from_list(drawn_rows(6))), [9, 8, 7]
    assert [bool(prompt.image_fields) for prompt in prompts] == [True, False, True]
    assert len({len(prompt.ids) for prompt in prompts}) == 2
    difference, problem = rows_scoring_problem(model, prompts, answer, 0, temperature=0.7)
    assert problem is None
    assert difference < 1e-4
    # As if a family's batches left padding in sight.
    forward = model.forward

    def with_padding_in_sight(**inputs):
        inputs["attention_mask"] = torch.ones_like(inputs["attention_mask"])
        return forward(**inputs)

    model.forward = with_padding_in_sight
    difference, problem = rows_scoring_problem(model, prompts, answer, 0, temperature=0.7)
    assert difference > 0.01
    assert problem.startswith(f"{type(model).__name__} scores a padded batch of 3 rows other")


@older
def test_a_family_that_counts_images_of_earlier_rows_among_the_positions_is_refused():
    model, processor = prepared(FAMILIES_OF_ALL["hunyuan_vl"])
    prompts = some_rows(processor, Dataset.from_list(drawn_rows(3)))
    _, problem = rows_scoring_problem(model, prompts, [9, 8, 7], 0, temperature=0.7)
    assert problem.startswith(f"{type(model).__name__} scores equal rows of a batch otherwise, by")


@pytest.mark.parametrize(("most", "failed"), [(0, "one row alone"), (1, "3 rows in a batch")])
def test_a_model_that_cannot_read_the_rows_is_refused(most, failed):
    model, processor = prepared(FAMILIES_OF_ALL["qwen2_5_vl"])
    prompts = some_rows(processor, Dataset.from_list(drawn_rows(3)))
    forward = model.forward

    def as_if_it_failed(**inputs):
        if len(inputs["input_ids"]) > most:
            raise RuntimeError("sizes differ\nby one")
        return forward(**inputs)

    model.forward = as_if_it_failed
    _, problem = rows_scoring_problem(model, prompts, [9, 8, 7], 0)
    name = type(model).__name__
    fix = "Fix: the processor's own settings, as it was loaded, or another model."
    assert problem == f"{name} cannot score {failed} (RuntimeError: sizes differ by one). {fix}"


def test_a_model_that_gives_no_numbers_is_refused():
    model, processor = prepared(FAMILIES_OF_ALL["qwen2_5_vl"])
    prompts = some_rows(processor, Dataset.from_list(drawn_rows(3)))
    torch.nn.init.constant_(model.get_output_embeddings().weight, torch.nan)
    _, problem = rows_scoring_problem(model, prompts, [9, 8, 7], 0)
    assert "by nan nats" in problem
    assert "by nan nats" in scoring_problem(model, some_ids(processor, model))


def test_frequencies_that_depend_on_other_rows_are_refused_where_a_row_may_be_long_enough(checkpoints, tmp_path):
    config = FAMILIES_OF_ALL["llava"]()[0].config
    assert rotary_problem(config) is None
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 100}
    config.text_config.rope_parameters = {**rope, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    assert rotary_problem(config, 100) is None
    assert "rope_type='longrope': frequencies change for all rows of a batch in which one has more than 100" in (
        rotary_problem(config, 101)
    )


def test_router_logits_that_training_left_in_a_configuration_do_not_reach_sampling(tmp_path):
    """As TRL's supervised training of a mixture of experts saves them; evaluation and rollouts decode with a cache."""

    def build():
        model, processor = FAMILIES_OF_ALL["qwen3_vl_moe"]()
        model.config.text_config.output_router_logits = True
        return model, processor

    folder = saved(build, tmp_path / "model")
    trainer = make("AdaPOTrainer", folder, tmp_path)
    assert len(prepared_batch(trainer)["completion_ids"])
    assert trainer.model.config.text_config.output_router_logits
    answers = TransformersEngine(folder, device="cpu").sample(
        [Request([{"role": "user", "content": "?"}], [], n=2)], SamplingParams(4)
    )
    assert len(answers[0]) == 2


@pytest.mark.parametrize("where", ["text", "vision"])
def test_noise_is_told_when_the_trainer_is_made_and_can_be_turned_off(where, tmp_path, caplog):
    """TRL's `disable_dropout` leaves dropout that is no layer."""
    model, processor = FAMILIES_OF_ALL["internvl"]()
    assert noise_of(model) == ""
    getattr(model.config, f"{where}_config").attention_dropout = 0.25
    folder = saved(lambda: (model, processor), tmp_path / "model")
    make("AdaPOTrainer", folder, tmp_path)
    assert (
        "AdaPOTrainer: the policy has noise (attention_dropout 0.25), which is drawn anew in each pass" in caplog.text
    )
    caplog.clear()
    trainer = make("AdaPOTrainer", folder, tmp_path, disable_dropout=True)
    assert "noise" not in caplog.text
    assert rollout_difference(trainer, Plain(folder, model.config)) < 1e-5


def test_noise_of_every_kind_is_found():
    model = torch.nn.ModuleDict({"a": torch.nn.Dropout(0.1), "b": torch.nn.Dropout(0.1), "c": torch.nn.Dropout(0.0)})
    model["d"] = torch.nn.Linear(1, 1)
    model["d"].router_jitter_noise, model["d"].drop_prob, model["d"].use_dropout = 0.2, 0.0, True
    assert noise_of(model) == "dropout 0.1, router_jitter_noise 0.2"
    model["d"].rank_dropout = {"default": 0.3}  # PEFT's
    assert noise_of(model) == "dropout 0.1, router_jitter_noise 0.2, rank_dropout 0.3"
    turn_off_noise(model)
    assert model["d"].rank_dropout == {"default": 0.0}
    assert (noise_of(model), model["a"].p, model["d"].use_dropout) == ("router_jitter_noise 0.2", 0.0, True)


@pytest.mark.parametrize(
    ("family", "unreached"),
    [("qwen2_5_vl", None), ("llava_next", "vision_tower"), ("glm5_next", "indexer"), ("qwen3", None)],
)
def test_weights_that_neither_text_nor_an_image_reaches_are_found(family, unreached, checkpoints, tmp_path):
    """The last layers of a vision tower; what chooses tokens."""
    folder = saved(FAMILIES_OF_ALL[family], tmp_path / "model")
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "?"}], "answer": "3"}] * 16)
    trainer = make("AdaPOTrainer", folder, tmp_path / "run", rows=rows, router_aux_loss_coef=0.0)
    names = unreached_weights(trainer)
    assert all(unreached in name for name in names) if unreached else names == []
    assert bool(names) == bool(unreached)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_next", "internvl", "paddleocr_vl", "minicpmv4_6"])
def test_layers_that_are_called_once_per_image_are_found(family):
    """ZeRO-3 is refused there."""
    model, processor = FAMILIES_OF_ALL[family]()
    problem = loops_problem(model, ensure_image_pass(model, processor))
    if family in ("paddleocr_vl", "minicpmv4_6"):
        assert re.search(r" calls model\S+ once per image, but ZeRO-3 needs .* Fix: FSDP2 or ZeRO-2", problem)
    else:
        assert problem is None


def test_a_token_or_a_position_that_the_model_lacks_is_named():
    model, processor = prepared(FAMILIES_OF_ALL["qwen2_5_vl"])
    (prompt,) = some_rows(processor, Dataset.from_list([{"prompt": "?"}]))
    known = model.get_input_embeddings().num_embeddings
    _, problem = rows_scoring_problem(model, [prompt.extended([known + 1])], [5], 0)
    assert f"Fix: model.resize_token_embeddings(len(tokenizer)), as a row has the token {known + 1}" in problem
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    add_fused_lm_head(gpt2)
    _, problem = rows_scoring_problem(gpt2, [Prompt([1] * 16, {}, {})], [5], 0)
    assert problem.endswith("Fix: max_prompt_length, as a row has 17 tokens, and the model 16 positions.")


def test_a_processor_that_cannot_write_a_question_with_an_image_is_refused():
    _, processor = FAMILIES_OF_ALL["qwen2_5_vl"]()
    assert processor_problem(processor) is None
    processor.chat_template = None
    assert "Qwen2_5_VLProcessor cannot write a question with an image (ValueError: " in processor_problem(processor)
    assert processor_problem(processor).endswith(
        "Fix: a checkpoint that comes with a processor, and a chat template that writes images."
    )


def test_a_configuration_that_does_not_name_the_token_of_images_is_refused():
    sentence = "AdaPOTrainer: TRL asks the model's configuration for the token of images .*Kosmos2Config.* Fix: another"
    with pytest.raises(ValueError, match=sentence), needs_image_token("AdaPOTrainer"):
        _ = Kosmos2Config().image_token_id
    with pytest.raises(AttributeError, match="'Kosmos2Config' object has no attribute 'colour'"), needs_image_token(""):
        _ = Kosmos2Config().colour


def test_a_policy_without_a_chat_template_is_refused(tmp_path):
    model, processor = FAMILIES_OF_ALL["qwen2_5_vl"]()
    processor.chat_template = None
    for name in ("ReflectionSFTTrainer", "OffPolicyRewardTrainer"):
        with pytest.raises(ValueError, match=f"{name}: the policy has no chat template.* Fix: train an instruction"):
            make(name, model, tmp_path, trainer_kwargs={"processing_class": processor})


@pytest.mark.parametrize("opened", ["<think>\n", "<think>\n\n</think>\n\n"])
def test_answers_that_are_learnt_behind_another_prompt_are_told(opened):
    _, processor = FAMILIES_OF_ALL["internvl"]()
    assert answer_prompt_problem(processor, "It is 3.") is None
    processor.chat_template += "{%- if add_generation_prompt %}{{ " + repr(opened) + " }}{% endif %}"
    problem = answer_prompt_problem(processor, "It is 3.")
    assert "which does not stand before the answers that are learnt" in problem
    assert repr(opened)[1:-1] in problem
    assert answer_prompt_problem(processor, f"{opened}It is 3.") is None


def test_images_are_looked_for_beyond_the_first_rows():
    _, processor = build_model("qwen2_5_vl", "test")
    image = drawn_rows(1)[0]["images"]
    rows = [{"prompt": "?", "images": []}] * 300 + [{"prompt": "?", "images": image}] * 20
    assert [bool(each.image_fields) for each in some_rows(processor, Dataset.from_list(rows))] == [True, False, True]


def test_a_row_that_cannot_be_encoded_is_passed_over(tmp_path):
    _, processor = build_model("qwen2_5_vl", "test")
    rows = [{"prompt": "?", "images": [str(tmp_path / "gone.png")]}, {"prompt": "?", "images": []}]
    assert len(some_rows(processor, Dataset.from_list(rows))) == 1
    assert some_rows(processor, Dataset.from_list(rows[:1])) == []


# ---------------------------------------------------------------------------------------------------------- trainers

EXPERTS = (
    r": TRL cannot compute the auxiliary loss of this mixture of experts, as {}\. Fix: router_aux_loss_coef=0\.0\."
)


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", ["AdaPOTrainer", "ReflectionSFTTrainer", DPO]))
@pytest.mark.parametrize(
    ("build", "reason"),
    [
        pytest.param(glm_experts, "Glm4vMoeTextConfig has no num_experts", marks=older),
        (internvl_experts, "InternVLForConditionalGeneration returns no router_logits"),
    ],
)
def test_an_auxiliary_loss_that_trl_cannot_compute_is_refused(name, build, reason, checkpoints, tmp_path):
    own = BY_OUTCOME if name == DPO else {}
    with pytest.raises(ValueError, match=name + EXPERTS.format(reason)):
        make(name, checkpoints(build), tmp_path, **own)
    make(name, checkpoints(build), tmp_path, **own, router_aux_loss_coef=0.0)


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", ["AdaPOTrainer", DPO]))
def test_a_reference_has_the_attention_of_each_part_of_the_policy(name, checkpoints, tmp_path):
    """TRL asks for the composite model's in all parts, which this language model refuses."""
    own = BY_OUTCOME if name == DPO else {}
    trainer = make(name, checkpoints(internvl_experts), tmp_path, **own, router_aux_loss_coef=0.0)
    policy, reference = trainer.model.config, trainer.ref_model.config
    assert policy.text_config._attn_implementation != policy._attn_implementation
    for part in ("text_config", "vision_config"):
        assert getattr(reference, part)._attn_implementation == getattr(policy, part)._attn_implementation
    assert reference._attn_implementation == policy._attn_implementation


def with_images(name):
    rows = rows_of(name)
    return rows.map(lambda row: {"images": [row["images"][0] if row["images"] else rows[0]["images"][0]]})


@pytest.mark.parametrize("name", full_but("AdaPOTrainer", ["AdaPOTrainer", "OffPolicyRewardTrainer"]))
def test_a_model_that_is_not_causal_is_refused(name, checkpoints, tmp_path):
    with pytest.raises(ValueError, match=name + r": PaliGemma.* is not causal over an answer.* nats"):
        make(name, checkpoints(paligemma), tmp_path, rows=with_images(name))


def test_a_row_without_an_image_is_refused_where_the_processor_demands_one(checkpoints, tmp_path):
    sentence = r"row 2 of train_dataset has no image, and PaliGemmaProcessor takes no text without one\. Fix: leave"
    with pytest.raises(ValueError, match=f"AdaPOTrainer: {sentence}"):
        make("AdaPOTrainer", checkpoints(paligemma), tmp_path)


def test_a_field_that_answers_would_need_is_refused(checkpoints, tmp_path):
    sentence = r"AdaPOTrainer: MllamaProcessor returns cross_attention_mask with an entry for each token of the prompt"
    with pytest.raises(ValueError, match=sentence):
        make("AdaPOTrainer", checkpoints(mllama), tmp_path)


@older
def test_doctor_says_the_same():
    def said(model, processor):
        return [str(each) for each in check_scoring(model, processor, [processor.tokenizer.eos_token_id])]

    fine, *trainers = said(*build_model("qwen2_5_vl", "test"))
    assert fine == "ok    trainers score with the logits of the model itself (scaled by 1)."
    assert trainers[0] == "ok    AdaPO: exact"
    assert len(trainers) == 5
    assert all(line.endswith(": exact") for line in trainers)
    torch.manual_seed(0)
    (wrong,) = said(*paligemma())
    assert wrong.startswith("FAIL  PaliGemmaForConditionalGeneration is not causal over an answer")
    (wrong,) = said(*FAMILIES_OF_ALL["hunyuan_vl"]())
    assert "scores equal rows of a batch otherwise" in wrong
    for experts in (glm_experts, internvl_experts):  # by their configuration, and by what their backbone returns
        _, *trainers = said(*experts())
        assert all(line.endswith(": exact with router_aux_loss_coef=0.0") for line in trainers)
    model, processor = build_model("qwen2_5_vl", "test")
    processor.chat_template = processor.chat_template.replace("content['text']", "'?'")
    _, *trainers = said(model, processor)
    assert trainers[0].startswith("FAIL  AdaPO: refused because")


# ------------------------------------------------------------------------------------------- placeholders and turns


def test_a_placeholder_without_a_logit_is_no_obstacle_to_sampling():
    model, _ = mllama()
    (outside,) = placeholder_ids(model.config)
    width = model.get_output_embeddings().out_features
    assert outside == width
    ending = StopTracker([4], {0}, [], None, [[]])
    sampler = GumbelMaxSampler(SamplingParams(4), [0], ending, [3, outside], torch.device("cpu"))
    scores = sampler(torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, width))
    assert scores[0, 3] == -torch.inf
    assert scores.isfinite().sum() == width - 1


def test_all_tokens_of_images_and_videos_that_a_configuration_names_are_placeholders():
    config = Ovis2Config(image_token_id=4, visual_indicator_token_ids=[5, 6, 7])
    assert placeholder_ids(config) == [4, 5, 6, 7]
    config = LlavaOnevisionConfig(image_token_index=8, video_token_index=9)
    assert placeholder_ids(config) == [8, 9]


def test_what_a_template_writes_between_an_answer_and_its_end_is_the_answers():
    """The sampled answer has `<|END_RESPONSE|><|END_OF_TURN_TOKEN|>`; the next turn begins behind both."""
    tokenizer = aya_vision()[1].tokenizer
    ids = next_turn_ids(tokenizer, "Sure?", eos_token_ids=[tokenizer.eos_token_id])
    expected = "<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Sure?<|END_OF_TURN_TOKEN|>"
    assert tokenizer.decode(ids) == expected + "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>"
    with pytest.raises(ValueError, match="next_turn_ids: after the assistant's answer"):  # text before the end
        next_turn_ids(tokenizer, "Sure?", eos_token_ids=[tokenizer.convert_tokens_to_ids("TILE")])


@pytest.mark.full
def test_two_turns_with_such_a_template_are_trained_exactly(checkpoints, tmp_path):
    trainer = make("AdaPOTrainer", checkpoints(aya_vision), tmp_path)
    trainer.train()
    assert trainer.state.global_step == 2
    assert any(len(trajectory.turns) == 2 for trajectory in trainer.trajectories)
    assert trainer.facts.max_difference < 1e-5
