"""What the tests of sampling share: an empty store, and text-only models."""

from functools import cache

import pytest
from text_reasoners import saved_reasoner

from trl_mmreason.jobs.store import Store


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "answers.sqlite") as store:
        yield store


@pytest.fixture(scope="session")
def reasoners(tmp_path_factory):
    """name → path of a saved text-only model, made when first asked for."""
    return cache(lambda name: saved_reasoner(name, tmp_path_factory.mktemp(name)))
