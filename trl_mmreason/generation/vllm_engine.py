"""Sample with vLLM's offline `LLM`, in this process or in one of its own.

A vLLM that begins inside a training process finds what accelerate, torchrun and a colocated vLLM have left there: their
process group, ranks and switches. In each of several processes it takes the first GPU, and its memory stays.
`VLLMProcess` runs `VLLMEngine` in a fresh interpreter, which ends when it is closed or this process ends; requests and
answers pass through a socket.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from transformers.utils.peft_utils import find_adapter_config_file

from ..compat.chat_template import continued_ids, declared_end_ids, ids_of_rendered
from ..compat.model_parts import placeholder_ids
from ..compat.vllm_pixels import normalised_by_processor
from ..data.images import plain_image
from .batch import ProcessingClass, conversation_of, images_in, tokenizer_of
from .engine import Failure, Request, Sample, SamplingParams, derive_seed
from .model_loading import ENCODING_ERRORS, load_processor, processor_fingerprint, saved_settings, unencodable
from .patience import patient_state

# What of `LLM`'s arguments changes answers. Memory, parallelism and scheduling may differ when a run is taken up again.
_DETERMINING = (
    *("calculate_kv_scales", "disable_sliding_window", "dtype", "hf_overrides", "kv_cache_dtype", "load_format"),
    *("logprobs_mode", "max_model_len", "mm_processor_kwargs", "model_impl", "quantization", "quantization_config"),
    *("revision", "speculative_config", "tokenizer", "tokenizer_mode", "tokenizer_revision"),
)
_BLOCKS, _BLOCK_BYTES = 256, 4096  # blocks of a weight file that its fingerprint reads
_NEVER = -100.0  # the lowest bias that vLLM takes
_SECONDS_TO_END = 60
# Beginnings of the variables by which torchrun and accelerate tell a process that it is one of several.
_LAUNCHERS = (
    *("ACCELERATE_", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("RANK", "ROLE_", "TORCHELASTIC_", "WORLD_SIZE"),
)


class LoadedVLLM:
    """Samples with a vLLM `LLM` of this process that somebody else has loaded; `eos_ids` end an answer."""

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
        results: list[Any] = [None] * len(requests)
        prompts, params, places = [], [], []
        for place, request in enumerate(requests):
            try:
                prompts.append(prompt_of(self.processing_class, request, self.chat_template_kwargs, self._eos_ids))
            except ENCODING_ERRORS as error:
                results[place] = unencodable(error)
                continue
            arguments = vllm_sampling_params(request, sampling_params, self._suppressed, self._eos_ids)
            params.append(self._sampling_params(**arguments))
            places.append(place)
        for place, output in zip(places, self._generate(prompts, params), strict=True):
            failed = isinstance(output, Failure)
            results[place] = output if failed else samples_of(output, requests[place].n, sampling_params)
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
    otherwise. With a text-only model a request with images is its own `Failure`.

    Args:
        model: a path or Hub id. An adapter has to be merged into its base model first.
        chat_template_kwargs: arguments of the chat template.
        **llm_kwargs: arguments of `vllm.LLM`, such as `dtype`, `tensor_parallel_size`, `gpu_memory_utilization`,
            `max_model_len`. `enable_prefix_caching` is on by default.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: `model` is an adapter.
    """

    def __init__(self, model: str, *, chat_template_kwargs: dict[str, Any] | None = None, **llm_kwargs: Any) -> None:
        try:
            import vllm
        except ImportError as error:
            raise _missing_vllm("VLLMEngine", error) from error
        _check_whole_model("VLLMEngine", model, llm_kwargs)
        processing_class = _processor(model, llm_kwargs)
        llm = vllm.LLM(model=model, **{"enable_prefix_caching": True, **normalised_by_processor(), **llm_kwargs})
        source = {name: llm_kwargs[name] for name in ("revision", "trust_remote_code") if name in llm_kwargs}
        eos_ids = declared_end_ids(saved_settings(model, **source), processing_class)
        super().__init__(llm, processing_class, eos_ids, chat_template_kwargs)
        self.settings = _settings(model, processing_class, self.chat_template_kwargs, llm_kwargs)


class VLLMProcess:
    """Engine on a vLLM that begins with the first request, in a process of its own.

    Under several processes each has one, on its GPU. Arguments are those of `VLLMEngine`.

    Raises:
        ImportError: vLLM is not installed.
        ValueError: `model` is an adapter; or several GPUs are asked for by one of several processes.
    """

    def __init__(self, model: str, *, chat_template_kwargs: dict[str, Any] | None = None, **llm_kwargs: Any) -> None:
        if find_spec("vllm") is None:
            raise _missing_vllm("VLLMProcess", "it is not installed")
        _check_whole_model("VLLMProcess", model, llm_kwargs)
        state = patient_state()
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            if state.num_processes > 1 and (size := llm_kwargs.get(name, 1)) > 1:
                raise ValueError(
                    f"VLLMProcess: got {name}={size} in each of {state.num_processes} processes, expected 1, as each "
                    "has one GPU. Fix: begin one process (accelerate launch --num_processes 1), or serve the model "
                    "with `vllm serve` and ask it with ServerEngine (--server)."
                )
        self.model = model
        self._arguments = {"chat_template_kwargs": chat_template_kwargs, **llm_kwargs}
        self.settings = _settings(model, _processor(model, llm_kwargs), chat_template_kwargs or {}, llm_kwargs)
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None

    def sample(self, requests: Sequence[Request], sampling_params: SamplingParams) -> list[list[Sample] | Failure]:
        """Sample n answers to each request, in order; see `Engine`. Raises `RuntimeError` if vLLM ended."""
        if self._connection is None:
            self._begin()
        unreadable = [_unreadable(request) for request in requests]
        readable = [request for request, failure in zip(requests, unreadable, strict=True) if failure is None]
        answers = iter(self._ask((readable, sampling_params)))
        return [next(answers) if failure is None else failure for failure in unreadable]

    def close(self) -> None:
        """End vLLM, whose memory is free then; another request begins it again."""
        if self._connection is not None and self._process is not None:
            self._connection.close()
            try:
                self._process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._connection = self._process = None

    def _begin(self) -> None:
        torch.cuda.empty_cache()  # what torch keeps for later would be missing from vLLM's share
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment_of_one())
        self._connection = ours
        self._ask((self.model, self._arguments))

    def _ask(self, message: Any) -> Any:
        assert self._connection is not None  # `_begin` has made it
        try:
            self._connection.send(message)
            reply = self._connection.recv()
        except (EOFError, ConnectionError):
            self.close()
            raise RuntimeError(f"VLLMProcess: vLLM with {self.model} ended. Its own output above says why.") from None
        except BaseException:  # interrupted, as from a keyboard: the next request would get this one's reply
            self.close()
            raise
        if isinstance(reply, BaseException):
            self.close()
            raise reply
        return reply


def _missing_vllm(engine: str, why: object) -> ImportError:
    return ImportError(
        f"{engine} needs vLLM, which cannot be imported here ({why}). Install it with `pip install "
        "'trl-mmreason[vllm]'`, or use TransformersEngine, or ServerEngine with a vLLM server elsewhere."
    )


def _processor(model: str, llm_kwargs: dict[str, Any]) -> Any:
    return load_processor(
        model, revision=llm_kwargs.get("revision"), trust_remote_code=llm_kwargs.get("trust_remote_code", False)
    )


def _check_whole_model(engine: str, model: str, llm_kwargs: dict[str, Any]) -> None:
    """Refuse an adapter."""
    if find_adapter_config_file(model, revision=llm_kwargs.get("revision")) is not None:
        raise ValueError(
            f"{engine}: {model} is an adapter. vLLM silently ignores adapter weights of layers that it does not "
            "support. Merge the adapter into its base model (`merge_and_unload`, `save_pretrained`) and give that, or "
            "use TransformersEngine."
        )


def _settings(
    model: str, processing_class: ProcessingClass, template: dict[str, Any], llm_kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Names, fingerprints, and those of `LLM`'s arguments that change answers, as `Engine.settings`."""
    return {
        "kind": "vllm",
        "model": model,
        "weights": _files_fingerprint(model),
        "processor": processor_fingerprint(processing_class),
        "chat_template_kwargs": template,
        **{name: llm_kwargs[name] for name in _DETERMINING if name in llm_kwargs},
    }


def prompt_of(
    processing_class: ProcessingClass, request: Request, template: dict[str, Any], eos_ids: Sequence[int] = ()
) -> dict[str, Any]:
    """Convert a request for vLLM: tokens with one placeholder per image, which vLLM expands, and the images.

    Tokens are those of `TransformersEngine`: earlier answers as they were sampled, and the prefix's own tokens last.
    """
    conversation = conversation_of(processing_class, request.first_messages, request.images)
    # those of later messages among them; one that cannot be read is its request's failure here, and would be
    # everybody's in vLLM
    shown = (image for message in (*conversation, *request.next_messages) for image in images_in(message))
    images = [plain_image(image) for image in shown]
    for image in images:
        image.load()
    text = processing_class.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, **template)
    (first,) = ids_of_rendered(processing_class, [text])
    prefix = tokenizer_of(processing_class)(request.prefix, add_special_tokens=False)["input_ids"]
    next_ids = continued_ids(
        processing_class, request.answer_ids, request.next_messages, eos_token_ids=eos_ids, **template
    )
    return {
        "prompt_token_ids": [*first, *next_ids, *prefix],
        **({"multi_modal_data": {"image": images}} if images else {}),
    }


def vllm_sampling_params(
    request: Request, sampling_params: SamplingParams, suppressed: Sequence[int], eos_ids: Sequence[int]
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
        "stop_token_ids": list(eos_ids),  # vLLM reads those of its folder, and a policy in memory may have others
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


def _files_fingerprint(model: str) -> str | None:
    """Digest of blocks spread over a local model's weight files, some of which any training changes; `None` for a Hub
    id."""
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


def environment_of_one() -> dict[str, str]:
    """The environment of a process that is one alone, and sees this process's GPU alone if this is one of several."""
    state = patient_state()
    own = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHERS)}
    if state.num_processes > 1 and state.device.type == "cuda":
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            if visible := own.get(name):
                own[name] = visible.split(",")[state.device.index]
        own.setdefault("CUDA_VISIBLE_DEVICES", str(state.device.index))
    return own


def _unreadable(request: Request) -> Failure | None:
    """Why a request cannot be sent; an image that cannot be read is its own request's failure."""
    contents = [message["content"] for message in request.messages if not isinstance(message["content"], str)]
    own = [part["image"] for content in contents for part in content if part.get("image") is not None]
    try:
        for image in (*request.images, *own):
            image.load()
    except ENCODING_ERRORS as error:
        return unencodable(error)
    return None


def serve(connection: Connection) -> None:
    """Load the engine that the first message names, and answer the others until the other end is closed."""
    engine = None
    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        reply: Any = None
        try:
            if engine is None:
                model, arguments = message
                engine = VLLMEngine(model, **arguments)
            else:
                reply = engine.sample(*message)
        except Exception as error:  # noqa: BLE001 - it is raised at the other end, where its class may not be known
            traceback.print_exc()
            reply = RuntimeError(f"{type(error).__name__}: {error}")
        connection.send(reply)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])))
