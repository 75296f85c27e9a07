"""Settings by which vLLM runs in the process of a trainer, on a machine with or without a GPU."""

import os
from functools import partial

import torch


def let_cpus_take_vllm():
    """Set what vLLM reads from the environment; without a GPU change how its build for CPUs keeps weights."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if torch.cuda.is_available():
        return
    import vllm._custom_ops
    from trl.generation import vllm_generation
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.fused_moe.experts import cpu_moe

    # The prefix cache holds whole blocks: on CPUs of 128 tokens, or of 32 at the least.
    vllm_generation.LLM = partial(vllm_generation.LLM, block_size=32)
    vllm._custom_ops._supports_onednn = False  # it repacks weights, and new ones could not be loaded
    utils.check_cpu_sgl_kernel = lambda *_: False  # likewise in bfloat16
    pack, compute = cpu_moe.cpu_prepack_moe_weight, cpu_moe.cpu_fused_moe  # likewise of experts

    def pack_and_compute(output, hidden, w13, w2, w13_bias, w2_bias, weights, experts, activation, isa, *more):
        packed = pack(w13, isa), pack(w2, isa)
        compute(output, hidden, *packed, w13_bias, w2_bias, weights, experts, activation, isa, *more)

    cpu_moe.cpu_prepack_moe_weight, cpu_moe.cpu_fused_moe = lambda weight, isa: weight, pack_and_compute
    os.environ["TORCH_COMPILE_DISABLE"] = "1"  # vLLM reads it; compiling takes half a minute
