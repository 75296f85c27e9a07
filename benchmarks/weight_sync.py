"""A policy's weights on their way to vLLM, in buckets and one by one; needs vLLM."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoModelForImageTextToText

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.compat.replaced import replaced
from trl_mmreason.miniature.models import SIZES

from .common import GROUP, ROOT, Result, make_questions, report, save_policy, take_turns
from .training import settings

_TESTS = ROOT / "tests"


def weight_sync(*, rounds: int = 5, layers: int = 33) -> Result:
    """Hand a policy's weights to a colocated vLLM in buckets, beside TRL's way, weight by weight.

    Args:
        layers: of the language model, twelve weights each.
    """
    with TemporaryDirectory() as folder:
        trainer = _colocated(Path(folder), layers)
        from trl.generation.vllm_generation import VLLMGeneration  # imported late: it loads vLLM

        generation = trainer.vllm_generation
        ways = {"weight by weight": VLLMGeneration.sync_weights, "in buckets": type(generation).sync_weights}
        seconds, _ = take_turns({name: partial(way, generation) for name, way in ways.items()}, rounds)
        count = sum(1 for _ in trainer.model.parameters())
    ratio = report(seconds, "in buckets", "weight by weight", title=f"{count} weights")
    result = Result({"seconds": seconds, "weights": count})
    result.check(ratio <= 0.5, f"It takes {ratio:.2f} of the time; half is asked for.")
    return result


def adapter_sync(*, rounds: int = 5, layers: int = 33, rank: int = 8) -> Result:
    """Hand an adapter of all linear layers to a colocated vLLM, beside weights with the adapter merged, in buckets.

    Args:
        layers: of the language model, twelve weights each.
        rank: of the adapter.
    """
    with TemporaryDirectory() as folder:
        lora = LoraConfig(r=rank, target_modules="all-linear")
        trainer = _colocated(Path(folder), layers, {"peft_config": lora}, vllm_lora=True)
        generation = trainer.vllm_generation

        def merged() -> None:
            with generation.adapter.loading_base(), replaced(generation, adapter=None):
                generation.sync_weights()

        seconds, _ = take_turns({"merged": merged, "adapter": generation.sync_weights}, rounds)
    ratio = report(seconds, "adapter", "merged", title="a sync")
    result = Result({"seconds": seconds})
    result.check(ratio <= 0.5, f"It takes {ratio:.2f} of the time; half is asked for.")
    return result


def weight_sync_served(*, rounds: int = 5, layers: int = 33) -> Result:
    """Send a policy's weights to a vLLM server over gloo in buckets, beside a request for each weight.

    What the server then holds has to be the same, bit for bit. TRL 1.16 sends all in one request; the time of that is
    measured, too.

    Args:
        layers: of the language model, twelve weights each.
    """
    with TemporaryDirectory() as folder:
        _save_deep_policy(Path(folder) / "model", layers)
        model = AutoModelForImageTextToText.from_pretrained(Path(folder) / "model", dtype=torch.float32)
        weights = [(name, weight.detach()) for name, weight in model.named_parameters()]
        with _served(Path(folder)) as address:
            from trl_mmreason.compat.vllm_client import ImageClient  # imported late: it loads vLLM

            client = ImageClient(address, connection_timeout=240)
            client.init_communicator(torch.device("cpu"))

            def held() -> dict[str, str]:
                call = {"method": "digests"}
                return client.session.post(f"{address}/collective_rpc", json=call).json()["results"][0]

            def a_request_each() -> None:
                with client.weight_update():
                    for name, weight in weights:
                        client.update_named_param(name, weight)

            def at_once() -> None:
                with replaced(client, bucket=sys.maxsize):
                    client.update_named_params([], weights)

            ways: dict[str, Callable[[], None]] = {
                "a request each": a_request_each,
                "in one request": at_once,
                "in buckets": partial(client.update_named_params, [], weights),
            }
            before, same = held(), {}
            for name, way in ways.items():
                client.session.post(f"{address}/collective_rpc", json={"method": "zero"}).raise_for_status()
                way()
                same[name] = held() == before
            seconds, _ = take_turns(ways, rounds)
    report(seconds, "in one request", "a request each", title=f"{len(weights)} weights")
    ratio = report(seconds, "in buckets", "a request each", title=f"{len(weights)} weights")
    result = Result({"seconds": seconds, "weights": len(weights), "same": same})
    result.check(all(same.values()), f"The server holds other weights: {same}.")
    result.check(ratio <= 0.5, f"They take {ratio:.2f} of the time; half is asked for.")
    return result


def _colocated(folder: Path, layers: int, arguments: dict[str, Any] | None = None, **own: Any) -> AdaPOTrainer:
    """A trainer of a policy with many small weights, and a vLLM in this process."""
    sys.path.append(str(_TESTS / "engines"))
    from vllm_cpu import let_cpus_take_vllm

    let_cpus_take_vllm()
    _save_deep_policy(folder / "model", layers)
    run = settings(GROUP, GROUP, use_vllm=True, top_p=1.0, vllm_max_model_length=512, max_completion_length=8)
    run |= {"vllm_gpu_memory_utilization": 0.2} if torch.cuda.is_available() else {}
    args = AdaPOConfig(str(folder), **run, **own)
    return AdaPOTrainer(str(folder / "model"), args=args, train_dataset=make_questions(1), **(arguments or {}))


def _save_deep_policy(folder: Path, layers: int) -> None:
    """Save a miniature with many small weights."""
    SIZES["deep"] = replace(SIZES["study"], layers=layers)
    save_policy(folder, "deep")


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """Address of a vLLM server of the policy in a folder, which takes weights over gloo."""
    sys.path.append(str(_TESTS / "helpers"))
    from processes import serving

    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", folder / "model", "--host", "127.0.0.1"]
    command += ["--dtype", "float32", "--max-model-len", 512, "--max-num-seqs", 12, "--enforce-eager"]
    command += ["--worker-extension-cls", "vllm_worker.Weights", "--weight-transfer-config", '{"backend": "gloo"}']
    path = os.pathsep.join([str(_TESTS / "engines"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment |= {} if torch.cuda.is_available() else {"TORCH_COMPILE_DISABLE": "1"}  # which takes half a minute
    with serving(command, folder / "server.log", "/health", os.environ | environment) as address:
        yield address
