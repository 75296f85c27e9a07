"""What engines have sampled, and how it differs from what was trained on."""

from contextlib import contextmanager

from trl_mmreason.compat.replaced import replaced

TOLERANCE = 1e-4
"""Nats by which log-probabilities of vLLM and of the training pass may differ in float32."""


def differences(rollout, among=True):
    """|sampled − trained log-probability| of the sampled tokens, in nats."""
    return (rollout["sampled"] - rollout["trained"]).abs()[rollout["mask"] & among]


@contextmanager
def recorded_ids(engine):
    """The token ids of each answer that engines of this class sample within the block, one answer a request."""
    ids, sample = [], engine.sample

    def record(self, *args):
        answers = sample(self, *args)
        ids.extend(answer.token_ids for (answer,) in answers)
        return answers

    with replaced(engine, sample=record):
        yield ids
