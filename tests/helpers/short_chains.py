"""Short chains to score."""

STEP = (
    "<|reasoning_step_start|><|reasoning_step_name_start|>a<|reasoning_step_name_end|><|reasoning_step_thought_start|>"
    "{}<|reasoning_step_thought_end|><|reasoning_step_reflection_start|>c<|reasoning_step_reflection_end|>"
    "<|reasoning_step_end|>"
)


def chain(*thoughts, answer="7"):
    """A chain with a step for each thought; partial if the answer is `None`."""
    steps = "<|reasoning_start|>" + "<|reasoning_proceed|>".join(map(STEP.format, thoughts))
    return steps if answer is None else f"{steps}<|reasoning_end|><|answer_start|>{answer}<|answer_end|>"
