"""Families of which TRL knows nothing, or something else, train exactly, with one image in a row, several or none."""

import pytest
import torch
import transformers
from datasets import Dataset
from further_families import aya_vision, deepseek_vl, gemma4, granite_vision, idefics3, saved
from packaging.version import Version
from support import SMALL_RUN, ParityGrader, changed_weights, drawn_rows, load, logps_of, prepared_batch, weights_of

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.generation.batch import collate

SETTINGS = {**SMALL_RUN, "beta": 0.1, "filter_zero_advantage": False, "filter_truncated": False, "warmup_steps": 0}


@pytest.fixture(params=[aya_vision, deepseek_vl, gemma4, granite_vision, idefics3], ids=lambda make: make.__name__)
def model(request, tmp_path):
    if request.param in (gemma4, idefics3) and Version(transformers.__version__) < Version("5.23"):
        pytest.skip("its processor needs torchvision then")
    return saved(request.param, tmp_path / "model")


def made(model, folder, rows, **settings):
    args = AdaPOConfig(str(folder), **{**SETTINGS, **settings})
    return AdaPOTrainer(model, args=args, train_dataset=Dataset.from_list(rows), grader=ParityGrader())


def test_scores_are_those_of_a_plain_model_row_by_row(model, tmp_path):
    rows = drawn_rows(3)
    trainer = made(model, tmp_path / "run", rows)
    batch = prepared_batch(trainer, [row for row in rows for _ in range(4)])
    found, (plain, _) = logps_of(trainer, batch), load(model)
    assert {len(each.images) for each in trainer.trajectories} == {0, 1, 2}
    for place, each in enumerate(trainer.trajectories):
        with torch.no_grad():
            logits = plain.eval()(**collate([each.context], 0)).logits[0].float() / trainer.temperature
        expected = logits[:-1].log_softmax(-1).gather(1, torch.tensor(each.context.ids[1:])[:, None])[:, 0]
        expected = expected[len(each.prompt.ids) - 1 :]
        mask = torch.tensor(each.env_mask).bool()
        difference = (found[place, : len(expected)] - expected)[mask].abs().max()
        assert difference < 1e-4, difference  # Gemma 4 alone moves by 4e-5 with padding


def test_an_update_is_the_same_in_micro_batches(model, tmp_path):
    def trained(size):
        settings = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 8 // size, "max_steps": 1}
        torch.manual_seed(0)
        trainer = made(model, tmp_path / str(size), drawn_rows(6), optim="sgd", learning_rate=0.1, **settings)
        before = weights_of(trainer.model)
        trainer.train()
        assert changed_weights(trainer.model, before)
        return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])

    torch.testing.assert_close(trained(2), trained(8), atol=1e-4, rtol=0)
