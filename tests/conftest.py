"""Tiny models and drawn rows that the trainers' tests share."""

import gc
import os
import signal
from collections import Counter
from functools import cache

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_DISABLED", "true")

import pytest
import torch
from support import FAMILY_NAMES, drawn_rows, full_but, load, saved_model
from text_reasoners import saved_reasoner

from trl_mmreason.jobs.store import Store

torch.set_num_threads(1)

# a shell's background jobs, and what they start, would ignore interrupts, which tests send
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Begin with the files of which most tests write files, as training does: workers that share files end together."""
    writing = Counter(item.path for item in items if "tmp_path" in item.fixturenames)
    items.sort(key=lambda item: -writing[item.path])


def pytest_collection_finish():
    """Leave what is imported out of later garbage collections: accelerate collects with every trainer that trains."""
    gc.collect()
    gc.freeze()


@pytest.fixture(params=full_but("qwen2_5_vl", FAMILY_NAMES))
def family(request):
    return request.param


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """family → path of a saved `test`-size model, made when first asked for."""
    return cache(lambda family: str(saved_model(family, tmp_path_factory.mktemp(family))))


@pytest.fixture(scope="session")
def reasoners(tmp_path_factory):
    """name → path of a saved text-only model, made when first asked for."""
    return cache(lambda name: saved_reasoner(name, tmp_path_factory.mktemp(name)))


@pytest.fixture
def processor(checkpoints):
    """Qwen2.5-VL's, made for this test alone."""
    return load(checkpoints("qwen2_5_vl"))[1]


@pytest.fixture(scope="session")
def rows():
    return drawn_rows(24)


@pytest.fixture
def store(tmp_path):
    """An empty store."""
    with Store(tmp_path / "answers.sqlite") as store:
        yield store


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache of data sets for this test alone."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
