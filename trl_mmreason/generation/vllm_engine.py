"""Sample with vLLM's offline `LLM`: continuous batching, and one prefill for several answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from transformers.utils.peft_utils import find_adapter_config_file

from ..compat.chat_template import continued_ids
from ..compat.model_parts import placeholder_ids
from ..data.images import plain_picture
from .batch import ProcessingClass, conversation_of, declared_end_ids, images_in, tokenizer_of
from .engine import Failure, Request, Sample, SamplingParams, derive_seed
from .loading import ENCODING_ERRORS, load_processor, processor_fingerprint, unencodable

# What of `LLM`'s arguments changes answers. Memory, parallelism and scheduling may differ when a run is taken up again.
_DETERMINING = ("dtype", "hf_overrides", "max_model_len", "mm_processor_kwargs", "quantization", "revision")
_BLOCKS, _BLOCK_BYTES = 256, 4096  # blocks of a weight file that its fingerprint reads
_NEVER = -100.0  # the lowest bias that vLLM takes


class LoadedVLLM:
    """Samples with a vLLM `LLM` of this process that somebody else has loaded.

    Args:
        llm: vLLM's `LLM`.
        processing_class: writes the conversations.
        eos_ids: the tokens that end an answer.
        chat_template_kwargs: handed to the chat template.
    """

    def __init__(
        self,
        llm: Any,
        processing_class: ProcessingClass,
        eos_ids: Sequence[int],
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        from vllm import SamplingParams as VLLMSamplingParams

        self.llm, self.processing_class = llm, processing_class
        self.chat_template_kwargs = chat_template_kwargs or {}
        self._sampling_params: Callable[..., Any] = VLLMSamplingParams
        self._suppressed = placeholder_ids(llm.llm_engine.model_config.hf_config)
        self._eos_ids = eos_ids

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Sample n answers to each request, in order; see `Engine`."""
        results: list[list[Sample] | Failure] = []
        rendered: list[tuple[int, dict[str, Any]]] = []
        for number, request in enumerate(requests):
            try:
                rendered.append(
                    (number, prompt_of(self.processing_class, request, self.chat_template_kwargs, self._eos_ids))
                )
                results.append([])
            except ENCODING_ERRORS as error:
                results.append(unencodable(error))
        params = [
            self._sampling_params(**vllm_sampling_params(requests[number], sampling_params, self._suppressed))
            for number, _ in rendered
        ]
        outputs = self._generate([prompt for _, prompt in rendered], params)
        for (number, _), output in zip(rendered, outputs, strict=True):
            results[number] = (
                output if isinstance(output, Failure) else samples_of(output, requests[number].n, sampling_params)
            )
        return results

    def _generate(self, prompts: list[dict[str, Any]], params: list[Any]) -> list[Any]:
        """Return vLLM's outputs; if it refuses a call for one bad prompt, find that prompt by halving."""
        if not prompts:
            return []
        try:
            return self.llm.generate(prompts, params, use_tqdm=False)
        except (ValueError, TypeError) as error:  # raised by checks before any work
            if len(prompts) == 1:
                return [Failure(f"vLLM refuses the prompt: {error}")]
        half = len(prompts) // 2
        return self._generate(prompts[:half], params[:half]) + self._generate(prompts[half:], params[half:])


class VLLMEngine(LoadedVLLM):
    """Engine on vLLM in this process.

    The same seeds give the same answers on the same machine under the same load; batches of another shape may round
    otherwise.

    Args:
        model: a path or Hub id. An adapter has to be merged into its base model first.
        processing_class: writes the conversations; by default the one saved with the model. With a text-only model's
            tokenizer a request with pictures is its own `Failure`.
        chat_template_kwargs: handed to the chat template.
        **llm_kwargs: arguments of `vllm.LLM`, such as `dtype`, `tensor_parallel_size`, `gpu_memory_utilization`,
            `max_model_len`. `enable_prefix_caching` is on unless they say otherwise.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: `model` is an adapter.
    """

    def __init__(
        self,
        model: str,
        processing_class: ProcessingClass | None = None,
        *,
        chat_template_kwargs: dict[str, Any] | None = None,
        **llm_kwargs: Any,
    ) -> None:
        try:
            import vllm
        except ImportError as error:
            raise missing_vllm("VLLMEngine", error) from error
        check_whole_model("VLLMEngine", model, llm_kwargs)
        trusted = {name: llm_kwargs[name] for name in ("revision", "trust_remote_code") if name in llm_kwargs}
        processing_class = processing_class or load_processor(model, **trusted)
        llm = vllm.LLM(model=model, **{"enable_prefix_caching": True, **llm_kwargs})
        eos_ids = declared_end_ids(_generation_settings(model, llm_kwargs.get("revision")), processing_class)
        super().__init__(llm, processing_class, eos_ids, chat_template_kwargs)
        self.settings = vllm_settings(model, processing_class, self.chat_template_kwargs, llm_kwargs)


def missing_vllm(engine: str, why: object) -> ImportError:
    """The error that an engine cannot be had without vLLM."""
    return ImportError(
        f"{engine} needs vLLM, which cannot be imported here ({why}). Install it with `pip install "
        "'trl-mmreason[vllm]'`, or use TransformersEngine, or ServerEngine with a vLLM server elsewhere."
    )


def check_whole_model(engine: str, model: str, llm_kwargs: dict[str, Any]) -> None:
    """Raise a `ValueError` for an adapter.

    Args:
        engine: name of the engine, for the error message.
        model: a path or Hub id.
        llm_kwargs: arguments of `vllm.LLM`.
    """
    if find_adapter_config_file(model, revision=llm_kwargs.get("revision")) is not None:
        raise ValueError(
            f"{engine}: {model} is an adapter. vLLM silently ignores adapter weights of layers that it does not "
            "support. Merge the adapter into its base model (`merge_and_unload`, `save_pretrained`) and give that, or "
            "use TransformersEngine."
        )


def vllm_settings(
    model: str, processing_class: ProcessingClass, template: dict[str, Any], llm_kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Names, fingerprints, and those of `LLM`'s arguments that change answers, as `Engine.settings`."""
    return {
        "kind": "vllm",
        "model": model,
        "weights": files_fingerprint(model),
        "processor": processor_fingerprint(processing_class),
        "chat_template_kwargs": template,
        **{name: llm_kwargs[name] for name in _DETERMINING if name in llm_kwargs},
    }


def prompt_of(
    processing_class: ProcessingClass, request: Request, template: dict[str, Any], eos_ids: Sequence[int] = ()
) -> dict[str, Any]:
    """Convert a request for vLLM: tokens with one placeholder a picture, which vLLM expands, and the pictures.

    Earlier answers that were sampled follow the generation prompt as they were sampled, and the prefix's own
    tokens come last, as in `TransformersEngine`. `eos_ids` end an answer.
    """
    # a picture that cannot be read is its request's failure here, and would be everybody's in vLLM
    images = [plain_picture(image) for image in request.images]
    behind = [plain_picture(image) for message in request.next_messages for image in images_in(message)]
    for image in (*images, *behind):
        image.load()
    conversation = conversation_of(processing_class, request.first_messages, images)
    text = processing_class.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, **template)
    tokenizer = tokenizer_of(processing_class)
    first, prefix = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (text, request.prefix))
    next_ids = continued_ids(
        processing_class, request.answer_ids, request.next_messages, eos_token_ids=eos_ids, **template
    )
    images += behind
    return {
        "prompt_token_ids": [*first, *next_ids, *prefix],
        **({"multi_modal_data": {"image": images}} if images else {}),
    }


def vllm_sampling_params(
    request: Request, sampling_params: SamplingParams, suppressed: Sequence[int]
) -> dict[str, Any]:
    """Make vLLM's `SamplingParams` for a request, overriding every setting that a checkpoint might have."""
    return {
        # vLLM refuses several greedy answers, which would be all alike.
        "n": request.n if sampling_params.temperature else 1,
        # vLLM counts answer k's seed up from this one; neighbouring seeds must not share answers.
        "seed": derive_seed(request.seed),
        "max_tokens": sampling_params.max_new_tokens,
        "temperature": sampling_params.temperature,
        "top_p": sampling_params.top_p,
        "top_k": sampling_params.top_k or -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop": list(sampling_params.stop),
        "include_stop_str_in_output": bool(sampling_params.stop),
        "logprobs": 0 if sampling_params.logprobs else None,  # 0: of the sampled token alone
        "logit_bias": dict.fromkeys(suppressed, _NEVER) or None,
    }


def samples_of(output: Any, n: int, sampling_params: SamplingParams) -> list[Sample] | Failure:
    """Turn a `RequestOutput` into samples."""
    samples = []
    for answer in sorted(output.outputs, key=lambda answer: answer.index):
        if answer.finish_reason not in ("stop", "length"):
            return Failure(f"vLLM ended an answer with finish reason {answer.finish_reason!r}")
        ids = list(answer.token_ids)
        logprobs = None
        if sampling_params.logprobs:
            logprobs = [step[token].logprob for token, step in zip(ids, answer.logprobs, strict=True)]
        samples.append(Sample(answer.text, answer.finish_reason, ids, logprobs))
    return samples if sampling_params.temperature else samples * n


def _generation_settings(model: str, revision: str | None) -> GenerationConfig:
    """The checkpoint's generation settings, or the defaults."""
    try:
        return GenerationConfig.from_pretrained(model, revision=revision)
    except OSError:
        return GenerationConfig()


def files_fingerprint(model: str) -> str | None:
    """Digest of blocks spread over a local model's weight files; `None` for a Hub id.

    Training changes nearly every value of what it trains, so that some block tells; a file of many gigabytes is read
    in a moment.
    """
    if not Path(model).is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted(Path(model).glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as opened:
            for block in range(_BLOCKS):
                opened.seek(size * block // _BLOCKS)
                digest.update(opened.read(_BLOCK_BYTES))
    return digest.hexdigest()[:16]
