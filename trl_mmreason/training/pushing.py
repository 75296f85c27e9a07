"""What a push to the Hub takes from an output folder: files with the names that models have, and nothing else.

Rows, questions, answers and images are in many other files of a run (`completions/`, `rounds.sqlite`,
`round-1/pairs.parquet`, `rollouts_0_of_1.pt` of a checkpoint, reports), so a file that nobody thought of stays here.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from ..compat.replaced import replaced
from .resuming import FILES, step_of

_MODEL = (
    *("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "*.bin.index.json", "adapter_model.bin"),
    *("*config.json", "tokenizer.json", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("*.model", "*.tiktoken", "*.jinja", "additional_chat_templates/*.jinja", "chat_template.json", "*.py"),
    *("README.md", "training_args.bin", "trainer_state.json", "facts.json", "curves.png", "runs/**/*tfevents*"),
)
_RESUMED_FROM = (  # what a checkpoint holds beside the model
    *(FILES, "optimizer*", "scheduler.pt", "scaler.pt", "rng_state*.pth", "latest", "reference.pt"),
    *("global_step*/*", "optimizer_*/*", "pytorch_model_fsdp*/*"),
)


def pushed_files(folder: str | Path) -> list[str]:
    """Paths, relative to an output folder or a checkpoint, of the files that a push uploads."""
    folder = Path(folder)
    patterns = [*_MODEL, *(_RESUMED_FROM if step_of(folder) >= 0 else ())]
    files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return sorted(path.relative_to(folder).as_posix() for path in files)


@contextmanager
def pushes_models_only() -> Iterator[None]:
    """Let uploads within the block take `pushed_files` alone."""
    upload = HfApi.upload_folder

    @wraps(upload)
    def upload_model(self: HfApi, *, folder_path: str | Path, **kwargs: Any) -> Any:
        allowed = [glob.escape(name) for name in pushed_files(folder_path)]
        return upload(self, folder_path=folder_path, allow_patterns=allowed, **kwargs)

    with replaced(HfApi, upload_folder=upload_model):
        yield
