"""What trainers put right about their arguments, where no trainer is needed to see it."""

import pytest

from trl_mmreason.construction import all_rewards, completion_text


def own_reward(completions):
    return [1.0] * len(completions)


def length_reward(completions):
    return [float(len(text)) for text in completions]


def test_added_rewards_come_behind_the_methods_own():
    assert all_rewards("T", [own_reward], None) == [own_reward]
    assert all_rewards("T", [own_reward], length_reward) == [own_reward, length_reward]
    assert all_rewards("T", [own_reward], [length_reward, "a model"]) == [own_reward, length_reward, "a model"]


def test_an_added_reward_with_a_name_of_the_methods_own_is_refused():
    def same_name(completions):
        return [0.0] * len(completions)

    same_name.__name__ = "own_reward"
    with pytest.raises(ValueError, match=r"T: added .* names of its own, \['own_reward'\], .* Rename them"):
        all_rewards("T", [own_reward], [length_reward, same_name])


def test_the_text_of_a_completion():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert completion_text("ab", "row 1") == "ab"
    assert completion_text([{"role": "assistant", "content": "ab"}], "row 1") == "ab"
    assert completion_text([{"role": "assistant", "content": parts}], "row 1") == "ab"


@pytest.mark.parametrize("roles", [[], ["user"], ["assistant"] * 2])
def test_a_completion_that_is_not_one_message_of_the_assistant_is_refused(roles):
    messages = [{"role": role, "content": "a"} for role in roles]
    with pytest.raises(ValueError, match="completion of row 1 is .* expected a text or one message of the assistant"):
        completion_text(messages, "row 1")


def test_a_completion_with_a_picture_is_refused():
    parts = [{"type": "text", "text": "a"}, {"type": "image"}]
    with pytest.raises(ValueError, match="completion of row 1 is .* expected text alone, no pictures"):
        completion_text([{"role": "assistant", "content": parts}], "row 1")
