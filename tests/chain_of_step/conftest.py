"""Tiny models that know the template's tokens."""

from functools import cache

import pytest

from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.miniature.models import build_model


@pytest.fixture(scope="session")
def bases(tmp_path_factory):
    """family → path of a saved model with the template's tokens, made when first asked for.

    It is a process reward model, and as good a policy: both are ordinary models.
    """

    @cache
    def base(family):
        model, processor = build_model(family)
        add_chain_tokens(model, processor)
        folder = tmp_path_factory.mktemp(f"{family}_base")
        ProcessRewardModel(model, processor).save_pretrained(folder)
        return str(folder)

    return base
