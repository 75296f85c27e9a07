"""Supervised training ends at a target accuracy, or after its last step."""

import pytest
from torch import nn
from transformers import TrainerControl, TrainerState

from trl_mmreason.training.stop_at_accuracy import StopAtAccuracy


@pytest.mark.parametrize(
    ("accuracy", "stopped_before", "stops"), [(0.9, False, True), (0.5, False, False), (0.5, True, True)]
)
def test_below_the_target_others_end_training_all_the_same(accuracy, stopped_before, stops):
    """As transformers does after the last step, which may lie amid an epoch."""
    state, control = TrainerState(global_step=3, max_steps=3), TrainerControl(should_training_stop=stopped_before)
    StopAtAccuracy(lambda _: accuracy, 0.8, every_steps=10).on_step_end(None, state, control, model=nn.Linear(1, 1))
    assert control.should_training_stop is stops
