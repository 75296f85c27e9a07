"""Tiny checkpoints that the engine tests share."""

import pytest
import torch
from support import load, saved_model

from trl_mmreason.chain_of_step.tokens import add_chain_tokens


def pytest_xdist_auto_num_workers():
    """Two files at a time on CPUs: vLLM keeps one core busy. On GPUs one, as two engines would share their memory."""
    return 1 if torch.cuda.is_available() else 2


@pytest.fixture(scope="session")
def policies(tmp_path_factory):
    """Two checkpoints with the template's tokens: embeddings and head of their own, or tied."""
    found = {}
    for name in ("model", "tied"):
        folder = saved_model("qwen2_5_vl", tmp_path_factory.mktemp(name))
        model, processor = load(folder)
        if name == "tied":
            model.config.tie_word_embeddings = model.config.text_config.tie_word_embeddings = True
            model.lm_head.weight = model.get_input_embeddings().weight
        add_chain_tokens(model, processor)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        again, _ = load(folder)
        assert (again.lm_head.weight is again.get_input_embeddings().weight) == (name == "tied")
        found[name] = str(folder)
    return found
