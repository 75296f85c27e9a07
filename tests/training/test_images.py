"""Pixel values follow their sample through rollouts, shuffling, splitting and padding."""

import torch
from PIL import ImageOps
from support import adapo_trainer, load, logps_of, prepared_batch, recorded_batches
from trl.data_utils import prepare_multimodal_messages


def scored_logps(trainer, rows):
    """Log-probabilities of sampled trajectories, each row's on its own line, padding zeroed."""
    batch = prepared_batch(trainer, rows)
    return logps_of(trainer, batch), batch


def with_other_image(trainer, batch, rows, row):
    """The batch as it would be had sample `row` shown other images; its completions stay the same."""
    images = [ImageOps.invert(image) for image in rows[row]["images"]]
    shown, _ = trainer._encode((prepare_multimodal_messages(rows[row]["prompt"], images=images), None))
    fields = list(batch["fields"])
    fields[row] = {**fields[row], "image": shown.image_fields}
    return {**batch, "fields": fields}


def test_a_samples_log_probabilities_depend_on_its_own_images_only(family, checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows, filter_truncated=False)
    rows = rows[:8]  # one image, two, none, one, two, none, one, two
    base, batch = scored_logps(trainer, rows)
    for changed in (0, 4):
        logps = logps_of(trainer, with_other_image(trainer, batch, rows, changed))
        difference = (logps - base).abs().amax(dim=1)
        assert difference[changed] > 1e-3
        others = [row for row in range(8) if row != changed]
        assert difference[others].max() < 1e-5


def test_shuffling_and_splitting_keep_images_with_their_samples(family, checkpoints, rows, tmp_path):
    """Every sample of a split batch scores as it does in the whole batch."""
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows, per_device_train_batch_size=2, steps_per_generation=4)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    wholes = recorded_batches(trainer)
    trainer._prepare_inputs([dict(row) for row in rows[:8]])
    whole = wholes[0]

    def by_completion(batch):
        keys = [tuple(ids) for ids in torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1).tolist()]
        return dict(zip(keys, logps_of(trainer, batch), strict=True))

    expected = by_completion(whole)
    found = {}
    for part in trainer._buffered_inputs:
        found |= by_completion(part)
    assert found.keys() == expected.keys()
    for key, logps in found.items():
        torch.testing.assert_close(logps, expected[key], atol=1e-5, rtol=0)


def test_old_and_new_log_probabilities_agree_at_the_first_step(family, checkpoints, rows, tmp_path):
    """In TRL's own training step, with the old ones computed apart: ratio 1 within 1e-4 in fp32."""
    settings = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "max_steps": 1, "filter_truncated": False}
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows, **settings)
    gaps, compute = [], trainer._get_per_token_logps_and_entropies

    def watch(model, *args, **kwargs):
        outputs = compute(model, *args, **kwargs)
        if torch.is_grad_enabled():
            inputs = trainer._buffered_inputs[trainer._step % 2]
            mask = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
            gaps.append((outputs[0] - inputs["old_per_token_logps"])[mask].abs().max().item())
        return outputs

    trainer._get_per_token_logps_and_entropies = watch
    trainer.train()
    assert len(gaps) == 1
    assert gaps[0] < 1e-4


def test_padding_side_of_the_processor_does_not_move_log_probabilities(checkpoints, rows, tmp_path):
    path = checkpoints("qwen2_vl")
    results = []
    for side in ("left", "right"):
        _, processor = load(path)
        processor.tokenizer.padding_side = side
        trainer = adapo_trainer(path, tmp_path, rows, trainer_kwargs={"processing_class": processor})
        results.append(scored_logps(trainer, rows[:8])[0])
    torch.testing.assert_close(results[0], results[1], atol=1e-6, rtol=0)
