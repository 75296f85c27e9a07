"""TRL's vLLM generation, colocated and served, corrected for vision-language models.

TRL 1.16 has faults here that its users do not see, because a policy also answers a corrupted prompt. Each correction
names the thread that reports it, and `tests/engines/test_vllm.py` says when TRL no longer needs it. This module imports
without vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list, is_peft_model
from torch import Tensor
from transformers import ProcessorMixin
from trl.data_utils import is_conversational
from trl.generation import vllm_generation
from trl.trainer import grpo_trainer

from .adapters import parts_shared_weight
from .chat_template import declared_end_ids
from .merged_adapters import merged_parameters
from .replaced import replaced
from .saved_weights import saved_weights
from .sharding import is_sharded, whole_buckets
from .vllm_adapters import AdapterInVLLM, engine_settings
from .vllm_buckets import BUCKET, Buckets, in_buckets
from .vllm_client import ImageClient, images_key
from .vllm_pixels import normalised_by_processor
from .vllm_prompts import PromptMemory, compare_prompts, find_images, unexpanded_prompts
from .vllm_sampling import sampling_settings
from .vllm_turns import Reply, Turns, UntilEnough


@contextmanager
def corrected_vllm(args: Any) -> Iterator[None]:
    """While TRL builds a trainer, replace `VLLMGeneration` by `VerifiedGeneration`."""
    build = partial(VerifiedGeneration, args=args)
    with replaced(grpo_trainer, VLLMGeneration=build):
        yield


class VerifiedGeneration(vllm_generation.VLLMGeneration):
    """`VLLMGeneration` that passes the trainer's prompts to vLLM, and raises if vLLM read others."""

    def __init__(self, *, args: Any, **settings: Any) -> None:
        model, mode = settings["model"], settings["mode"]
        self._dtype, self._seed = engine_dtype(args, model), args.seed
        self.prompts = PromptMemory()
        self._lora: dict[str, Any] = engine_settings(model) if getattr(args, "vllm_lora", False) else {}
        self.adapter: AdapterInVLLM | None = None
        self._buckets: Buckets | None = None
        if mode == "colocate" and not model.name_or_path:
            raise ValueError(
                "use_vllm with vllm_mode='colocate': the policy was passed in memory and has no folder or Hub id "
                "(`name_or_path` is empty) from which vLLM could build its own. Fix: save the policy and its processor "
                "to a folder, and pass the folder."
            )
        if getattr(model, "is_loaded_in_8bit", False):
            raise ValueError(
                "use_vllm with load_in_8bit: such a base cannot be merged with its adapter for vLLM. Fix: "
                "load_in_4bit, or use_vllm=False."
            )
        if parts_shared_weight(model):
            raise ValueError(
                "use_vllm: the adapter changes one of embeddings and LM head, which share their weight in vLLM. Fix: "
                "an adapter of neither, a list of trainable_token_indices, ensure_weight_tying=True, or use_vllm=False."
            )
        eos_ids = declared_end_ids(model.generation_config, settings["processing_class"])
        settings["generation_kwargs"] = sampling_settings(settings.get("generation_kwargs"), model.config, eos_ids)
        self._saved = saved_weights(model)
        super().__init__(**settings)

    def _init_vllm(self) -> None:
        # TRL has no setting for the engine's dtype, and vLLM reads a float32 checkpoint as bfloat16.
        engine = getattr(vllm_generation, "LLM", None)  # not there without vLLM, which `super()` refuses

        def build(**settings: Any) -> Any:
            # vLLM cannot be handed new weights in 4 bit, which TRL makes it keep for a QLoRA: it keeps whole ones.
            settings |= {"quantization": None, **normalised_by_processor(), "dtype": self._dtype, **self._lora}
            # huggingface/trl#7040: vLLM seeds torch, and by the number of the process alone, so that runs of other
            # seeds would sample the same.
            settings["seed"] += self._seed
            return engine(**settings)  # type: ignore[misc]

        with replaced(vllm_generation, LLM=build, VLLMClient=ImageClient):
            super()._init_vllm()
        if self.mode == "colocate":
            if self._lora:
                self.adapter = AdapterInVLLM(self.llm, self.model, self._saved)
            self.context, self.longest_prompt = (most := self.llm.llm_engine.model_config.max_model_len), most - 1
            self.context_setting = "vllm_max_model_length"
        else:
            context = [self.vllm_client.context() if self.accelerator.is_main_process else 0]
            (self.context,) = broadcast_object_list(context)
            self._weight_metadata: list[Any] = []  # the client announces each bucket
            # without images a server takes no prompt after which it could not give all tokens that are asked for
            self.longest_prompt = self.context - self.max_completion_length
            self.context_setting = "the server's --max-model-len"

    def _iter_named_params(self) -> Iterator[tuple[str, Tensor]]:
        """As TRL's, by the names of checkpoints; adapters are merged beside the policy, which stays as it is.

        With `vllm_lora` they are those of the base, and none as soon as vLLM has it.
        """
        if self.adapter and self.adapter.base_sent:
            return
        if is_peft_model(self.model):
            weights = merged_parameters(self.model, merge=self.adapter is None)
            live = ((self._fix_param_name_to_vllm(name), weight) for name, weight in weights)
        elif is_sharded(self.model) or self._dist.fsdp_version == 2:  # of FSDP2 not before training
            weights = whole_buckets(self.model, BUCKET, self._flush)
            live = ((self._fix_param_name_to_vllm(name), weight) for name, weight in weights)
        else:
            live = super()._iter_named_params()
        for name, weight in live:
            yield from self._saved(name, weight)

    def sync_weights(self) -> None:
        """Send the policy's weights to vLLM, and reset its caches."""
        freed = self._dist.is_fsdp and self._dist.fsdp_version == 1
        if self.mode == "server" and self.accelerator.is_main_process:
            self.vllm_client.freed = freed
        if self.adapter and self.enable_sleep_mode:
            self.adapter.base_sent = False  # a vLLM that sleeps keeps no weights
        loading = self.adapter.loading_base() if self.adapter else nullcontext()
        with loading, in_buckets(self.llm, copies=freed) if self.mode == "colocate" else nullcontext() as self._buckets:
            super().sync_weights()
        self._buckets = None
        if self.adapter:
            self.adapter.send(self.model)
        # huggingface/trl#7198: TRL resets the prefix cache alone, and an image that was seen before the update would
        # be encoded by the old weights.
        if self.mode == "colocate":
            self.llm.llm_engine.reset_encoder_cache()
        elif self.accelerator.is_main_process:
            self.vllm_client.reset_encoder_cache()

    def _flush(self) -> None:
        """Let vLLM load what waits for its bucket to be full, before what was gathered is freed."""
        if self._buckets is not None:
            self._buckets.flush()
        elif self.mode == "server" and self.accelerator.is_main_process:
            self.vllm_client.flush()

    def generate(
        self,
        prompts: list[list[int]],
        images: list[list | None] | None,
        num_generations: int,
        profiler: Any = None,
    ) -> tuple:
        """Generate as TRL does, from the trainer's own prompts.

        Raises:
            PromptMismatch: vLLM answered other prompts than those that are trained on.
            ValueError: a prompt leaves no room for an answer.
        """
        self._check_lengths(prompts)
        present = None if images is None else [row or None for row in images]
        engine_prompts = prompts
        if self.mode == "colocate" and present is not None:
            # huggingface/trl#6294, #6401: vLLM expands placeholders itself, so it has to get one per image. Given the
            # expanded ones of TRL 1.16 it expands one of them again, and the policy answers a corrupted prompt.
            engine_prompts = [
                self.prompts.unexpanded(ids, len(row or [])) for ids, row in zip(prompts, present, strict=True)
            ]
        with self._one_random_state():
            generated = super().generate(engine_prompts, present, num_generations, profiler)
        compare_prompts(prompts, generated[0])
        return generated

    def _check_lengths(self, prompts: list[list[int]]) -> None:
        if (most := max(map(len, prompts))) > self.longest_prompt:
            raise ValueError(
                f"A prompt has {most} tokens, its images' included, but vLLM takes at most {self.longest_prompt}, as "
                f"its context holds {self.context}. Fix: max_prompt_length={self.longest_prompt} leaves such rows out; "
                f"to keep them, raise {self.context_setting}."
            )

    def generate_alone(
        self, prompts: list[list[int]], images: Sequence[list], num_generations: int, sent: dict[tuple[int, ...], Any]
    ) -> tuple[list[list[int]], list[list[float | None]]]:
        """Generate with a server as `generate` does in the main process, while other processes do something else.

        Args:
            prompts, num_generations: as for `generate`.
            images: of each prompt, empty without.
            sent: features of the images that the server has processed, to which this adds: it holds them as long as
                their images are held.

        Returns:
            Ids and log-probabilities of each answer.
        """
        self._check_lengths(prompts)
        asked, shown = prompts[::num_generations], images[::num_generations]
        new = {images_key(row): row for row in shown if row and images_key(row) not in sent}
        if new:
            sent.update(zip(new, self.vllm_client.image_features([*new.values()]), strict=True))
        features = [self._place_features(sent.get(images_key(row)), ids) for row, ids in zip(shown, asked, strict=True)]
        output = self.vllm_client.generate(
            asked,
            features=features if any(features) else None,
            n=num_generations,
            repetition_penalty=self.repetition_penalty,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p or 0.0,
            max_tokens=self.max_completion_length,
            logprobs=self.logprobs,
            structured_outputs_regex=self.structured_outputs_regex,
            generation_kwargs=self.generation_kwargs,
        )
        compare_prompts(asked, output["prompt_ids"])
        return output["completion_ids"], [[token[0] for token in row] for row in output["logprobs"]]

    @contextmanager
    def _one_random_state(self) -> Iterator[None]:
        """Let processes that share one vLLM sample the same tokens.

        huggingface/trl#3671: each process samples by itself, with torch's global generator, or on CUDA with seeds from
        numpy's. TRL seeds them once, and dropout of an adapter, whose shapes differ among processes, or a reward
        function that draws makes them differ from then on. The processes then continue different tokens, and hang.
        """
        if self.mode != "colocate" or self.tensor_parallel_size == 1:
            yield
            return
        seed = [int(torch.randint(2**63 - 1, ()))]
        torch.distributed.broadcast_object_list(seed, group=self.tp_group, group_src=0)
        device = self.accelerator.device
        numpy_state = np.random.get_state()
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed[0])
            np.random.seed(seed[0] % 2**32)
            try:
                yield
            finally:
                np.random.set_state(numpy_state)

    def generate_turns(
        self,
        prompts: list[list[int]],
        images: list[list | None] | None,
        reply: Reply,
        tell_ended: Callable[[list[int], list[list[int]]], None],
        profiler: Any = None,
    ) -> tuple[list[list[float]], int, int]:
        """Generate several answers to each prompt with a colocated vLLM; otherwise as `generate`.

        Args:
            prompts, images, profiler: as for `generate`.
            reply: as for `Turns`, with rows of `prompts`; it is told every answer.
            tell_ended: is called with rows of `prompts` whose answer has ended, and with its ids, after `reply`.

        Returns:
            Log-probabilities of all tokens after each prompt, 0.0 for those of messages; the tokens of all prompts
            after the first, and how many of them were in the prefix cache.
        """
        mine, first = range(len(prompts)), 0  # where these rows begin among those of the processes that share this vLLM
        shared = self.tensor_parallel_size > 1
        if shared:
            first = torch.distributed.get_rank(self.tp_group) * len(prompts)

        def reply_to_all(answers: Mapping[int, list[int]]) -> dict[int, Any]:
            own = {row - first: answer for row, answer in answers.items() if row - first in mine}
            replies = [{row + first: turn for row, turn in (reply(own) if own else {}).items()}]
            if shared:  # each process steps the same requests, and knows what is said in its own
                parts: list[Any] = [None] * self.tensor_parallel_size
                torch.distributed.all_gather_object(parts, replies[0], group=self.tp_group)
                replies = parts
            merged = {row: turn for part in replies for row, turn in part.items()}
            return {row: merged[row] for row in answers if row in merged}

        def tell_own(rows: list[int], ids: list[list[int]]) -> None:
            own = [(row - first, answer) for row, answer in zip(rows, ids, strict=True) if row - first in mine]
            tell_ended([row for row, _ in own], [answer for _, answer in own])

        turns = Turns(self.llm, reply_to_all, tell_own)
        with replaced(self.llm, generate=turns.generate), self._none_left():
            _, _, nested, _ = self.generate(prompts, images, 1, profiler)
        logprobs = [[token[0] if token else 0.0 for token in row] for row in nested]
        return logprobs, turns.read_tokens, turns.cached_tokens

    def generate_until(
        self,
        prompts: Sequence[tuple[list[int], list[int]]],
        images: Sequence[list],
        begun: list[int],
        reply: Callable[..., Mapping[int, Any]],
        leave: Callable[..., None],
        enough: Callable[[], bool],
        profiler: Any = None,
    ) -> None:
        """Let conversations go on with a colocated vLLM until enough of them have ended.

        Args:
            prompts: of each what was read and said so far, as the trainer has it and with one placeholder per image.
            images: of each all of its images.
            begun, reply, leave, enough: as for `UntilEnough`.
            profiler: as for `generate`.
        """
        whole, short = [[ids for ids, _ in prompts], [ids for _, ids in prompts]]
        self.prompts.keep(whole, images, short)
        until = UntilEnough(self.llm, begun, reply, leave, enough)
        with replaced(self.llm, generate=until.generate), self._none_left():
            self.generate(whole, [*images] if any(images) else None, 1, profiler)

    @contextmanager
    def _none_left(self) -> Iterator[None]:
        """After an error, end the requests that vLLM still has, which would answer the next rollout."""
        engine = self.llm.llm_engine
        try:
            yield
        except BaseException:
            engine.abort_request([*engine.output_processor.request_states], internal=True)
            raise

    @contextmanager
    def loaded(self) -> Iterator[Any]:
        """Yield the colocated `LLM`, awake and with the policy's weights."""
        self.sync_weights()
        if self.enable_sleep_mode:
            self.llm.wake_up(tags=["kv_cache"])
        try:
            yield self.llm
        finally:
            self.let_sleep()

    def let_sleep(self) -> None:
        """Let a colocated vLLM that was given weights sleep, if it is to, as `generate` leaves it."""
        if self.mode == "colocate" and self.enable_sleep_mode:
            self.llm.sleep(level=2)
            self._llm_weights_sleeping = True

    def _place_features(self, features: dict | None, prompt_ids: list[int]) -> dict | None:
        """Point the server's image features at their placeholders in the trainer's prompt.

        TRL takes each run of placeholders for one image, which is wrong where images stand side by side, and does
        not compare lengths.
        """
        if features is None:
            return None
        features, placeholder = dict(features), self.processing_class.image_token_id
        lengths = [span.count(placeholder) for span in features.pop("image_spans")]
        placeholders = find_images(prompt_ids, placeholder, lengths)
        return {**features, "mm_placeholders": {**features["mm_placeholders"], "image": placeholders}}


def remember_prompts(trainer: Any, prompts: Sequence[Any], tokenized: tuple) -> None:
    """Pass the unexpanded forms of the prompts that the trainer just tokenised to a colocated vLLM."""
    prompt_ids, images, _ = tokenized
    if not images or trainer.vllm_mode != "colocate" or not is_conversational({"prompt": prompts[0]}):
        return
    if isinstance(trainer.processing_class, ProcessorMixin):
        trainer.vllm_generation.prompts.keep(prompt_ids, images, unexpanded_prompts(trainer, prompts))


def engine_dtype(args: Any, model: Any) -> str:
    """The dtype of a colocated vLLM: the configured one, else the policy's training dtype."""
    chosen = getattr(args, "vllm_dtype", None)
    if chosen is not None:
        return chosen
    if args.bf16:
        return "bfloat16"
    if args.fp16:
        return "float16"
    return str(model.dtype).removeprefix("torch.")
