"""The settings of rollouts that TRL's GRPOConfig lacks, or that no paper has as TRL has them."""

from __future__ import annotations

from dataclasses import dataclass, field

from trl import GRPOConfig

DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class RolloutConfig(GRPOConfig):
    """`GRPOConfig` as the papers' equations have it, with the dtype of a colocated vLLM.

    Attributes:
        loss_type: "grpo", the mean over trajectories of the mean over their tokens; TRL's own default is "dapo", the
            mean over all tokens, in which a long trajectory weighs more.
        vllm_dtype: "float32", "bfloat16" or "float16"; by default that in which the policy is trained (`engine_dtype`).
            A server has a dtype of its own: start it with `--dtype`.
    """

    loss_type: str = field(default="grpo", metadata={"help": "How the loss of tokens is averaged; see GRPOConfig."})
    vllm_dtype: str | None = field(
        default=None, metadata={"help": "Dtype of a colocated vLLM; that of training by default."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vllm_dtype is None:
            return
        name = type(self).__name__
        if self.vllm_dtype not in DTYPES:
            raise ValueError(f"{name}: vllm_dtype={self.vllm_dtype!r}, expected one of {', '.join(DTYPES)}.")
        if not self.use_vllm or self.vllm_mode != "colocate":
            raise ValueError(
                f"{name}: vllm_dtype={self.vllm_dtype!r} is for use_vllm=True with vllm_mode='colocate'. Fix: leave it "
                "out; a vLLM server is given its dtype with --dtype."
            )
