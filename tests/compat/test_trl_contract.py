"""What training/ and compat/ rely on in TRL and transformers.

A failure here says what has to be looked at after an upgrade.
"""

import importlib.resources
import inspect
import os
import re
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import fsdp_utils
from support import adapo_trainer
from transformers import GenerationConfig, GenerationMixin, Trainer
from transformers.integrations import deepspeed
from transformers.trainer_jit_checkpoint import CheckpointManager, JITCheckpointCallback
from trl import DPOTrainer, GRPOTrainer, SFTTrainer
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient, parse_logprobs
from trl.generation.vllm_generation import VLLMGeneration
from trl.models import utils as models_utils
from trl.trainer import dpo_trainer, grpo_trainer, utils

from trl_mmreason.compat.sharding import loading_whole
from trl_mmreason.compat.trl_contract import changed_methods
from trl_mmreason.compat.vllm_client import name_tokens
from trl_mmreason.miniature.models import build_model


def test_private_methods_take_what_the_overrides_expect():
    nothing = {"trl": [], "transformers": []}
    assert changed_methods() == nothing, "read them, and adapt grpo.py, compat/vllm.py, checkpoint.py or live_rows.py"


def test_a_method_that_changed_is_named(monkeypatch):
    """As after an upgrade: one method is gone, another takes more."""
    monkeypatch.delattr(GRPOTrainer, "_generate")
    monkeypatch.setattr(VLLMGeneration, "sync_weights", lambda self, adapter: None)
    monkeypatch.delattr(Trainer, "_load_best_model")
    monkeypatch.setattr(GenerationMixin, "_prefill", lambda self, input_ids, generation_config: None)
    assert changed_methods() == {
        "trl": [
            "GRPOTrainer._generate is gone",
            "VLLMGeneration.sync_weights takes ['self', 'adapter'], expected ['self']",
        ],
        "transformers": [
            "Trainer._load_best_model is gone",
            "GenerationMixin._prefill cannot be called with ['input_ids', 'generation_config', 'model_kwargs']: "
            "got an unexpected keyword argument 'model_kwargs'",
        ],
    }


def test_an_evaluation_steps_two_kinds_of_schedules():
    """`BestModelMixin` does it in its place, where the metric has a value."""
    source = inspect.getsource(Trainer._evaluate)
    assert "isinstance(self.lr_scheduler, (torch.optim.lr_scheduler.ReduceLROnPlateau, GreedyLR))" in source
    assert "self.lr_scheduler.step(metrics[metric_to_check])" in source


def test_a_checkpoint_is_written_where_the_output_folder_is_said_to_be():
    """`CheckpointRestoreMixin` says another one, so that nothing else is there to rotate, and pushes afterwards."""
    source = inspect.getsource(Trainer._save_checkpoint)
    assert "run_dir = self._get_output_dir(trial=trial)" in source
    assert "best_checkpoint_dir = os.path.join(run_dir, best_checkpoint_folder)" in source
    assert "output_dir=run_dir" in source[source.index("rotate_checkpoints(") :]
    assert source.index("save_to_json(") < source.index("self._push_from_checkpoint(output_dir)")
    assert source.count("output_dir = ") == 1, "is huggingface/transformers#35782 fixed? Then `_unfinished` can go"


def test_an_epoch_still_begins_with_a_step_whatever_was_done_before():
    source = inspect.getsource(Trainer._inner_training_loop)
    assert source.index("self._run_epoch(") < source.index("self.control.should_training_stop")
    epoch = inspect.getsource(Trainer._run_epoch)
    # only in a warning of an empty data loader
    assert epoch.count("max_steps") == 1, "`_run_epoch` of CheckpointRestoreMixin can go"


def test_the_norm_of_an_update_is_known_before_its_step():
    """`facts.py` keeps it as it was before clipping, and decides in `on_pre_optimizer_step`."""
    source = inspect.getsource(Trainer._run_epoch)
    assert source.index("self._get_grad_norm(model, grad_norm=grad_norm)") < source.index(".on_pre_optimizer_step(")
    save = inspect.getsource(Trainer._save_checkpoint)
    assert "self._save_optimizer_and_scheduler(output_dir)" in save


def test_a_resumed_run_still_begins_with_the_order_of_the_first_epoch():
    """TRL's sampler has no `set_epoch`, which `Trainer` would call; with one, `_run_epoch` of `grpo.py` can go."""
    assert not hasattr(utils.RepeatSampler, "set_epoch")
    sampler = utils.RepeatSampler(range(5), mini_repeat_count=1, seed=0)
    assert sampler.generator.initial_seed() == 0
    assert sampler.num_samples == 5
    epoch = inspect.getsource(Trainer._inner_training_loop)
    assert "epoch=epoch," in epoch
    assert "epochs_trained=epochs_trained," in epoch


def test_transformers_own_handler_of_sigterm_still_lets_each_process_decide():
    """Else `interruption.py` can go; what it takes off is the callback of this name."""
    source = inspect.getsource(JITCheckpointCallback) + inspect.getsource(CheckpointManager)
    assert "should_training_stop = True" in source
    assert not {"check_trigger", "all_reduce", "reduce(", "SystemExit"} & {*re.findall(r"[A-Za-z_]+\(?", source)}
    assert "signal.signal(signal.SIGTERM, self.jit_manager._original_sigterm_handler)" in source
    assert "self.reduce(" in inspect.getsource(Accelerator.check_trigger)


@pytest.mark.parametrize("kind", [GRPOTrainer, SFTTrainer, DPOTrainer])
def test_metrics_of_an_evaluation_are_logged_without_the_name_of_its_set(kind):
    """Once they have it, `NamedEvaluations` can go."""
    source = inspect.getsource(kind.log)
    assert 'metrics = {f"eval_{key}": val for key, val in metrics.items()}' in source
    assert "self._metrics[mode].items()" in source
    assert "metric_key_prefix" in inspect.signature(kind.evaluation_loop).parameters


def test_the_batch_has_the_keys_that_are_edited(checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    inputs = trainer._rows = next(iter(trainer.get_train_dataloader()))
    batch = GRPOTrainer._generate_and_score_completions(trainer, inputs)
    wanted = {"prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask", "advantages"}
    assert wanted | {"num_items_in_batch", "ref_per_token_logps"} <= batch.keys()
    assert batch["num_items_in_batch"].ndim == 0
    assert len(trainer._logs["advantages"]) == len(inputs)  # what takes their place in the table of completions
    # with every step generating anew, TRL leaves the old log-probabilities out
    assert "old_per_token_logps" not in batch


def test_images_get_a_place_for_every_row_by_our_own_hand(checkpoints, rows, tmp_path):
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert source.count("self.log_multimodal") == source.count('self._logs["images"]') == 1
    assert "strip_images_from_messages" in inspect.getsource(GRPOTrainer.log)  # so that the table holds no images
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, log_completions=True)
    trainer.model.train()
    trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
    kept = trainer._logs
    assert len(kept["images"]) == len(kept["prompt"]) == len(kept["completion"]) == len(trainer._questions) == 8
    assert kept["prompt"].maxlen == kept["images"].maxlen == trainer._questions.maxlen


def test_prompts_are_gathered_without_images(checkpoints, rows, tmp_path):
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    assert source.count("gather_object(prompts)") == 1, "TRL gathers no images: `gather_without_images` can go"
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    trainer.model.train()
    trainer._generate_and_score_completions(next(iter(trainer.get_train_dataloader())))
    contents = [message["content"] for prompt in trainer._logs["prompt"] for message in prompt]
    kinds = [set(part) for content in contents if isinstance(content, list) for part in content]
    assert {*map(frozenset, kinds)} == {frozenset({"type"}), frozenset({"type", "text"})}  # no image, but its place


def test_trl_still_processes_images_again_to_score_answers():
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    call = "self.processing_class(images=images, text=prompts_text, padding=True"
    assert source.count("self.processing_class(") == source.count(call) == 1, "`fields_of_rows` may go"
    assert source.index("self._generate(prompts)") < source.index(call) < source.index("self._calculate_rewards(")


def test_trls_sampler_still_repeats_the_rows_of_a_rollout():
    source = inspect.getsource(GRPOTrainer._get_train_sampler)
    assert "repeat_count=self.num_iterations * self.args.steps_per_generation" in source, "`RowsReadOnce` may go"


def test_a_tensor_added_to_the_batch_is_shuffled_and_split_with_it():
    batch = {"completion_ids": torch.arange(8).view(4, 2), "kl_coefs": torch.arange(0, 8, 2).view(4, 1).expand(4, 2)}
    shuffled = grpo_trainer.shuffle_sequence_dict(batch)
    for part in grpo_trainer.split_tensor_dict(shuffled, 2):
        assert part["kl_coefs"].tolist() == [[first, first] for first, _ in part["completion_ids"].tolist()]


def test_the_reference_is_still_loaded_from_the_path_in_the_config():
    source = inspect.getsource(GRPOTrainer.__init__)
    assert "create_model_from_path(get_config_model_id(self.model.config)" in source


def test_dr_grpo_still_divides_by_the_attribute_that_two_turns_double():
    assert "per_token_loss.size(0) * self.max_completion_length" in inspect.getsource(GRPOTrainer._compute_loss)


def test_the_loss_reads_the_log_probabilities_that_are_kept_for_the_kl_term():
    source = inspect.getsource(GRPOTrainer._compute_loss)
    assert source.count("self._get_per_token_logps_and_entropies(") == 1


def test_transformers_still_fills_sampling_settings_from_the_checkpoint():
    """huggingface/trl#5783: once this fails, `own_settings_only` may have nothing left to do."""
    source = inspect.getsource(GenerationMixin._prepare_generation_config)
    assert "generation_config.update(**self.generation_config.to_dict(), defaults_only=True" in source
    assert GenerationConfig._get_default_generation_params()["typical_p"] == 1.0


# ----------------------------------------------------------------------------------------------- vLLM (compat/vllm.py)


def test_vllm_generation_is_built_from_the_names_that_are_replaced():
    assert {"model", "mode", "generation_kwargs"} <= inspect.signature(VLLMGeneration.__init__).parameters.keys()
    assert inspect.getsource(GRPOTrainer.__init__).count(" VLLMGeneration(\n") == 1
    start = inspect.getsource(VLLMGeneration._init_vllm)
    assert start.count(" LLM(\n") == start.count(" VLLMClient(\n") == 1


def test_weights_for_a_server_pass_through_the_method_that_sends_buckets():
    sync = inspect.getsource(VLLMGeneration.sync_weights)
    assert "if self._weight_metadata is None:" in sync  # and walks through all weights then
    assert sync.count("self.vllm_client.update_named_params(self._weight_metadata, self._iter_named_params())") == 1
    assert list(inspect.signature(VLLMClient.update_named_params).parameters) == ["self", "metadata", "named_params"]
    send = inspect.getsource(VLLMClient.update_named_params)
    assert send.count("if not self._updating_weights:") == 2  # around the start and the end of an update


def test_image_features_pass_through_the_methods_that_are_overridden():
    source = inspect.getsource(VLLMGeneration.generate)
    assert source.count("self._place_features(") == source.count("self.vllm_client.image_features(") == 1
    parameters = inspect.signature(VLLMClient.image_features).parameters
    assert list(parameters) == ["self", "images", "max_concurrent_requests"]
    render = inspect.getsource(VLLMClient.image_features)
    assert "/v1/chat/completions/render" in render
    assert '["features"]' in render


def test_a_colocated_vllm_is_asked_once_and_may_answer_with_tokens_that_it_has_not_sampled():
    """`generate_two_turns` replaces `LLM.generate` there; the follow-up's tokens have no log-probabilities."""
    source = inspect.getsource(VLLMGeneration.generate)
    call = "self.llm.generate(vllm_prompts, sampling_params=sampling_params, use_tqdm=False)"
    assert source.count("self.llm.generate(") == source.count(call) == 1
    sampled = SimpleNamespace(rank=1, logprob=-0.5)
    answer = SimpleNamespace(logprobs=[{7: sampled}, {}, {8: sampled}])
    assert vllm_generation.extract_logprobs([SimpleNamespace(outputs=[answer])]) == (
        [[[-0.5], [], [-0.5]]],
        [[[7], [], [8]]],
    )


def test_weights_are_sent_before_a_rollout_function_is_called():
    source = inspect.getsource(GRPOTrainer._generate)
    assert source.index("self.vllm_generation.sync_weights()") < source.index("self.rollout_func(prompts, self)")


def test_trl_still_needs_its_vllm_corrected():
    """Each of these says what compat/vllm.py no longer has to do once it fails."""
    assert "dtype" not in inspect.getsource(VLLMGeneration._init_vllm), "TRL sets the engine's dtype: `_init_vllm`"
    whole = inspect.getsource(VLLMGeneration)
    assert "logit_bias" not in whole, "TRL rules placeholders out: `without_placeholders`"
    assert "reset_encoder_cache" not in whole, "TRL resets the encoder cache (huggingface/trl#7198): `sync_weights`"
    placed = inspect.getsource(VLLMGeneration._place_features)
    assert "runs of image tokens" in placed, "TRL may know images side by side: `_place_features`, `find_images`"
    single = inspect.getsource(GRPOTrainer._generate_single_turn)
    unread = "_, completion_ids, logprobs, _ = self.vllm_generation.generate("
    assert unread in single, "TRL looks at the prompts that vLLM read: `compare_prompts`"
    assert "prompts=prompt_ids," in single, "TRL may not expand prompts for vLLM (huggingface/trl#6294): `PromptMemory`"


# ------------------------------------------------------------------------- scoring (fused_head.py, reference.py)


def test_trl_still_reads_the_head_s_scale_from_the_configuration():
    """`test_fused_head.py` shows that what it reads may be wrong; here is where it is put right."""
    (fused,) = (
        code for code in utils.add_fused_lm_head.__code__.co_consts if getattr(code, "co_name", "") == "_fused_forward"
    )
    read = {"logit_scale", "final_logit_softcapping", "temperature"}
    assert read <= set(fused.co_freevars), "TRL keeps them elsewhere: `use_own_head_output`"
    assert {"router_logits", "num_experts", "num_experts_per_tok"} <= set(fused.co_names), "model_checks.py"
    for module in (grpo_trainer, dpo_trainer):
        assert module.create_model_from_path is utils.create_model_from_path  # which `references_attend_alike` replaces
        source = inspect.getsource(module)
        asked = 'model_init_kwargs.setdefault("attn_implementation", self.model.config._attn_implementation)'
        assert asked in source, "TRL may ask for each part's own attention: `references_attend_alike`"


# ------------------------------------------------------------------------- ZeRO and FSDP2 (engines/, checkpoint.py)


def test_trl_and_transformers_still_need_their_sharding_corrected():
    """Each of these says what no longer has to be done once it fails."""
    head = inspect.getsource(utils.add_fused_lm_head)
    assert "weight.full_tensor()" in head, "FSDP2's head may have a whole gradient: `use_whole_head`"
    assert "register_external_parameter" not in head, "DeepSpeed may know of the head's weight: `use_whole_head`"
    shared = inspect.getsource(models_utils.prepare_fsdp)
    assert "broadcast" not in shared, "TRL sends references to all processes: `shard_reference`"
    for module in (grpo_trainer, dpo_trainer):
        assert module.prepare_fsdp is models_utils.prepare_fsdp  # the name that `references_agree` replaces
        search = "args.ddp_find_unused_parameters = True"
        assert search in inspect.getsource(module), "TRL lets DDP search no longer: `prepare_loading`"
    saved = inspect.getsource(Trainer.save_model)
    assert "exclude_frozen_parameters=True" in saved, "adapters may be saved whole under ZeRO-3: `save_model`"


def test_accelerate_still_takes_buffers_for_shards():
    source = inspect.getsource(fsdp_utils.fsdp2_load_full_state_dict)
    assert source.count("device_mesh = sharded_param.device_mesh") == 2, (
        "accelerate#3898 may be over: `buffers_are_sent`"
    )
    assert "isinstance(sharded_param, DTensor)" not in source


def test_llava_next_still_names_layers_that_it_does_not_have():
    model, _ = build_model("llava_next")
    own = {type(module).__name__ for module in model.modules()}
    assert set(model._no_split_modules) - own, "FSDP finds all layers: `name_own_layers`"


def test_a_checkpoint_can_be_read_whole_under_every_engine(monkeypatch):
    """`loading_whole` sets what transformers asks, and puts it back."""
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    config = type("Zero3", (), {"is_zero3": lambda self: True})()
    deepspeed.set_hf_deepspeed_config(config)
    try:
        with loading_whole():
            assert not deepspeed.is_deepspeed_zero3_enabled()
            assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"
        assert deepspeed.is_deepspeed_zero3_enabled()
        assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"
    finally:
        deepspeed.unset_hf_deepspeed_config()


def test_the_model_card_has_the_places_that_are_replaced():
    template = (importlib.resources.files("trl") / "templates/lm_model_card.md").read_text()
    for place in ("This model is ", "It has been trained using", "## Training procedure"):
        assert template.count(place) == 1, f"TRL's card has changed at {place!r}: adapt model_card.edit_card"


def test_tokens_of_vllm_0_32_are_named_as_trl_reads_them():
    """It answers with numbers; a TRL that reads them needs `ImageClient._post` no more."""
    other = {"token_id": 9, "logprob": -0.1, "rank": 1}
    numbers = [{"content": [{"token_id": 5, "logprob": -2.5, "rank": 3, "top_logprobs": [dict(other)]}]}]
    with pytest.raises(KeyError, match="token"):
        parse_logprobs(numbers)
    name_tokens(numbers[0]["content"])
    assert parse_logprobs(numbers) == ([[[-0.1, -2.5]]], [[[9, 5]]])
