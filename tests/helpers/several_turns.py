"""A trainer whose conversations differ: some have images in the user's messages, some end early."""

from support import drawn_rows, is_even

from trl_mmreason import GroupGRPOTrainer
from trl_mmreason.data.images import images_of

TURNS = 3


def corner(row, answers):
    """An image of the row's first one, or of a colour, of another size after each answer."""
    size = (28 * (1 + len(answers)), 56)
    images = images_of(row)
    return images[0].convert("RGB").crop((0, 0, 28, 28)).resize(size) if images else drawn_rows(1)[0]["images"][0]


class AsksAgain(GroupGRPOTrainer):
    """Shows a corner after an even answer, asks in words after an odd one, and stops at what is divisible by five.

    A row of two images is always shown another one, as no seed makes a server's answers the same on any machine.
    """

    def next_message(self, row, answers):
        always = len(images_of(row)) == 2
        if sum(map(ord, answers[-1])) % 5 == 0 and not always:
            return None
        if is_even(answers[-1]) or always:
            image = {"type": "image", "image": corner(row, answers)}
            return {"role": "user", "content": [image, {"type": "text", "text": f"Look at {len(answers)}."}]}
        return {"role": "user", "content": f"Sure of {answers[-1]}?"}


def length_reward(completions, trajectory, **_):
    assert [[m["content"] for m in each if m["role"] == "assistant"] for each in completions] == [
        each.answers for each in trajectory
    ]
    return [float(sum(len(turn.ids) for turn in each.turns)) for each in trajectory]
