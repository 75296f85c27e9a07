"""Silence warnings of other packages that do not concern users of this one, by their exact text.

Whatever else these packages say is shown.
"""

from __future__ import annotations

import logging
import re
import warnings

HARMLESS: tuple[tuple[str, type[Warning]], ...] = (
    # TRL's defaults and calls use transformers' old names, whatever a configuration says. Both names work until
    # transformers 6, for which TRL, and with it our pin, has to change.
    ("`gradient_checkpointing` is deprecated and will be removed in v6.", FutureWarning),
    ("`is_gradient_checkpointing` is deprecated and will be removed in v6.", FutureWarning),
    ("`gradient_checkpointing_enable` is deprecated and will be removed in v6.", FutureWarning),
    ("`gradient_checkpointing_disable` is deprecated and will be removed in v6.", FutureWarning),
    # `Trainer` pins memory by default. torch says this where there is no accelerator, and then does not pin.
    ("'pin_memory' argument is set as true but no accelerator is found", UserWarning),
)
"""Beginning of the message, and its category."""

# Logged when bitsandbytes is imported, as PEFT does, on CPUs with AVX512-BF16 without the package `kernels`, which has
# a faster product with 4-bit weights on the CPU. With a GPU no such product is computed there, and trainers on a CPU
# switch it off, because gradients cannot pass it (`precision.keep_training_layout`). It would only speed up sampling
# from 4-bit weights on a CPU.
BITSANDBYTES = ("bitsandbytes.backends.cpu.ops", "Failed to load CPU gemm_4bit_forward from kernels-community")
"""Logger, and beginning of the message."""


def silence_harmless() -> None:
    """Silence the warnings above in this process; imports nothing."""
    for beginning, category in HARMLESS:
        warnings.filterwarnings("ignore", message=re.escape(beginning), category=category)
    name, greeting = BITSANDBYTES
    logging.getLogger(name).addFilter(lambda record: not record.getMessage().startswith(greeting))
