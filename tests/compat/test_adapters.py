"""Whether the adapter of a checkpoint fits the one that is trained."""

import pytest
from peft import FourierFTConfig, LoHaConfig, LoraConfig, OFTConfig, TrainableTokensConfig, get_peft_model
from torch import nn

from trl_mmreason.compat.adapters import CheckpointError, check_scaling


@pytest.mark.parametrize(
    ("kind", "saved", "now"),
    [
        (LoraConfig, {}, {"lora_alpha": 16}),
        (LoraConfig, {}, {"use_rslora": True}),
        (LoHaConfig, {}, {"alpha": 16}),
        (LoHaConfig, {}, {"alpha_pattern": {"0": 4}}),
        (FourierFTConfig, {"n_frequency": 4}, {"scaling": 10.0}),
        (FourierFTConfig, {"n_frequency": 4}, {"random_loc_seed": 1}),  # of the places of the coefficients
        (OFTConfig, {"r": 0, "oft_block_size": 2}, {"use_cayley_neumann": False}),
        (LoraConfig, {"r": 2}, {"init_lora_weights": "pissa"}),  # which takes its beginning out of the base
        (TrainableTokensConfig, {"target_modules": ["1"], "token_indices": [1, 2]}, {"token_indices": [3, 4]}),
        (LoraConfig, {"trainable_token_indices": {"1": [1, 2]}}, {"trainable_token_indices": {"1": [3, 4]}}),
    ],
)
def test_the_same_tensors_under_another_scaling_are_another_adapter(kind, saved, now, tmp_path):
    def adapted(**settings):
        settings = {"target_modules": ["0"], **settings}
        return get_peft_model(nn.Sequential(nn.Linear(4, 4), nn.Embedding(5, 4)), kind(**settings))

    adapted(**saved).save_pretrained(tmp_path)
    check_scaling(adapted(**saved), tmp_path)
    with pytest.raises(CheckpointError, match=f"has {next(iter(now))}="):
        check_scaling(adapted(**{**saved, **now}), tmp_path)
