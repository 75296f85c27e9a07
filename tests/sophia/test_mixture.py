"""Mixtures: captions, shares, columns of different origin, and images that nobody decodes."""

from collections import Counter

import pytest
from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Images

from trl_mmreason.sophia.mixture import mix, mix_in, with_captions
from trl_mmreason.sophia.prompts import CAPTION_PROMPT, THINKING_PROMPT

MESSAGE = {"role": Value("string"), "content": Value("string")}


def image(index):
    return Images.new("RGB", (4, 4), (index, 0, 0))


def made(n=30, **columns):
    """Rows as `make_off_policy_data` makes them."""
    rows = [
        {
            "id": f"a{index}#0.0",
            "prompt": [{"role": "user", "content": f"a{index}"}],
            "images": [image(index)],
            "completion": "<think>3</think> 3",
            "reward": 0.5,
            **{name: values[index] for name, values in columns.items()},
        }
        for index in range(n)
    ]
    kinds = {"id": Value("string"), "prompt": List(MESSAGE), "images": List(Image(mode="RGB"))}
    kinds |= {"completion": Value("string"), "reward": Value("float64")}
    kinds |= {name: List(Value("float64")) for name in columns}
    return Dataset.from_list(rows, features=Features(kinds))


def visual(n=30):
    """One image, or none, a row; messages of the assistant, and no rewards."""
    rows = [
        {
            "prompt": f"b{index}",
            "image": None if index % 3 == 0 else image(100 + index),
            "completion": [{"role": "assistant", "content": "4"}],
        }
        for index in range(n)
    ]
    kinds = {"prompt": Value("string"), "image": Image(), "completion": List(MESSAGE)}
    return Dataset.from_list(rows, features=Features(kinds))


def text(n=30):
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": f"c{index}"}], "completion": "5"} for index in range(n)]
    )


def rewarded(*rewards):
    return text(len(rewards)).add_column("reward", rewards)


def origins(rows):
    return Counter(prompt[-1]["content"][0] for prompt in rows["prompt"])


SHARES = {"made": 0.5, "visual": 0.3, "text": 0.2}


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ((30, 30, 30), (30, 18, 12)),  # all of the first
        ((30, 9, 30), (15, 9, 6)),  # all of the second
        ((30, 30, 1), (3, 1, 1)),  # of 5 rows 2.5, 1.5 and 1; the row left over goes to the first of equals
    ],
)
def test_the_shares_are_those_of_the_largest_whole_that_the_parts_allow(sizes, counts):
    rows = mix({"made": made(sizes[0]), "visual": visual(sizes[1]), "text": text(sizes[2])}, SHARES)
    assert origins(rows) == dict(zip("abc", counts, strict=True))
    assert len({prompt[-1]["content"] for prompt in rows["prompt"]}) == len(rows)  # none twice


def test_shares_are_not_blurred_by_floating_point():
    """7 / 0.07 is 99.99999999999999."""
    assert origins(mix({"made": made(7), "text": text(93)}, {"made": 0.07, "text": 0.93})) == {"a": 7, "c": 93}
    thirds = {"made": 1 / 3, "visual": 1 / 3, "text": 1 / 3}
    assert origins(mix({"made": made(7), "visual": visual(7), "text": text(7)}, thirds)) == dict.fromkeys("abc", 7)


def test_the_columns_are_brought_together():
    rows = mix({"made": made(), "visual": visual(), "text": text()}, SHARES)
    assert rows.column_names == ["prompt", "images", "completion", "reward"]
    for row in rows:
        (message,) = row["prompt"]
        origin, index = message["content"][0], int(message["content"][1:])
        reds = {"a": [index], "b": [100 + index] * (index % 3 != 0), "c": []}[origin]
        assert [image.getpixel((0, 0))[0] for image in row["images"]] == reds
        assert message["role"] == "user"
        assert (row["completion"], row["reward"]) == {
            "a": ("<think>3</think> 3", 0.5),
            "b": ("4", 1.0),
            "c": ("5", 1.0),
        }[origin]


def test_rows_that_think_get_the_thinking_prompt_if_it_is_given():
    rows = mix({"made": made(), "text": text()}, {"made": 0.5, "text": 0.5}, thinking_prompt=THINKING_PROMPT)
    for prompt in rows["prompt"]:
        spoken = [message["content"] for message in prompt]
        assert spoken == ([THINKING_PROMPT, spoken[-1]] if spoken[-1][0] == "a" else [spoken[-1]])


def test_log_probabilities_are_kept_if_all_have_them():
    first, second = ([[-float(index), -0.5] for index in range(n)] for n in (4, 4))
    both = mix({"x": made(4, behavior_logps=first), "y": made(4, behavior_logps=second)}, {"x": 0.5, "y": 0.5})
    assert sorted(both["behavior_logps"][:]) == sorted([[-float(index), -0.5] for index in (0, 0, 1, 1, 2, 2, 3, 3)])
    one = mix({"x": made(4, behavior_logps=first), "y": text(4)}, {"x": 0.5, "y": 0.5})
    assert "behavior_logps" not in one.column_names


def test_trajectories_take_the_share_that_is_left(tmp_path):
    visual(9).to_parquet(tmp_path / "visual.parquet")
    given = {"visual": {"dataset": str(tmp_path / "visual.parquet"), "share": 0.3}}
    assert origins(mix_in(made(14), given)) == {"a": 14, "b": 6}  # 14 / 0.7 = 20 rows
    given["visual"]["share"] = 1.2
    with pytest.raises(ValueError, match=r"each to be above 0"):
        mix_in(made(14), given)
    with pytest.raises(ValueError, match=r"'trajectories' is the name of the rows themselves"):
        mix_in(made(14), {"trajectories": given["visual"]})


def test_rows_without_a_reward_take_no_share(tmp_path):
    """As `mmreason trajectories --unselected` writes them, whichever part they are of."""
    visual(9).to_parquet(tmp_path / "visual.parquet")
    rewarded(*[1.0, 0.0, 0.0, 0.0] * 3).to_parquet(tmp_path / "text.parquet")
    given = {"visual": {"dataset": str(tmp_path / "visual.parquet"), "share": 0.5}}
    mixed = mix_in(rewarded(*[1.0, 0.0, 0.0, 0.0] * 3), given)
    assert origins(mixed) == {"c": 3, "b": 3}
    assert 0 not in mixed["reward"]
    mixed = mix_in(made(9), {"text": {"dataset": str(tmp_path / "text.parquet"), "share": 0.25}})
    assert origins(mixed) == {"a": 9, "c": 3}
    assert 0 not in mixed["reward"]


def test_prompts_of_parts_become_texts():
    parts = [{"type": "image", "text": None}, {"type": "text", "text": "What"}, {"type": "text", "text": " is it?"}]
    rows = [{"prompt": [{"role": "user", "content": parts}], "images": [image(7)], "completion": "7"}]
    rows = Dataset.from_list(rows).cast_column("images", List(Image()))
    (row,) = mix({"visual": rows}, {"visual": 1.0})
    assert row["prompt"] == [{"role": "user", "content": "What is it?"}]
    assert [image.getpixel((0, 0))[0] for image in row["images"]] == [7]


def test_no_image_is_decoded_and_null_images_become_none(monkeypatch):
    rows = made(6).to_list()
    nothing = Dataset.from_list([{**row, "images": None} for row in rows[:3]] + rows[3:], features=made(1).features)
    with monkeypatch.context() as refusing:
        refusing.setattr(Image, "decode_example", None)  # would raise
        rows = mix({"x": nothing}, {"x": 1.0})
    found = {row["prompt"][0]["content"]: [image.getpixel((0, 0))[0] for image in row["images"]] for row in rows}
    assert found == {"a0": [], "a1": [], "a2": [], "a3": [3], "a4": [4], "a5": [5]}


def test_the_order_is_random_and_the_seed_s():
    def order(seed):
        rows = mix({"made": made(), "visual": visual(), "text": text()}, SHARES, seed=seed)
        return [prompt[0]["content"] for prompt in rows["prompt"]]

    first = order(0)
    assert first == order(0)
    assert first != order(1)
    assert [name[0] for name in first] != sorted(name[0] for name in first)
    assert {name for name in first if name[0] == "b"} != {name for name in order(1) if name[0] == "b"}  # others taken


@pytest.mark.parametrize(
    ("parts", "shares", "message"),
    [
        ({"made": made(2)}, {"mode": 1.0}, r"parts are \['made'\] and shares \['mode'\]"),
        ({}, {}, "expected a share of every part"),
        ({"text": rewarded(1.0, 0.5, None)}, {"text": 1.0}, "mix: the reward of row 2 of part 'text' is None"),
        ({"text": rewarded(1.0, float("nan"))}, {"text": 1.0}, "the reward of row 1 of part 'text' is nan"),
        ({"text": rewarded("high")}, {"text": 1.0}, "the reward of row 0 of part 'text' is 'high'"),
        ({"made": made(2), "text": text(2)}, {"made": 1.0, "text": 0.0}, "each to be above 0"),
        ({"made": made(2), "text": text(2)}, {"made": 0.5, "text": 0.4}, "1 as their sum"),
        ({"made": made(2), "text": text(2).select([])}, {"made": 0.5, "text": 0.5}, "'text' has no row with a reward"),
        ({"text": rewarded(0.0, 0.0)}, {"text": 1.0}, "'text' has no row with a reward"),
        ({"made": made(2).remove_columns("completion")}, {"made": 1.0}, r"part 'made' .* lacks \['completion'\]"),
        (
            {"text": Dataset.from_list([{"prompt": "Why?", "completion": [{"role": "user", "content": "?"}]}])},
            {"text": 1.0},
            "The completion of part 'text', prompt 'Why.' is .*expected a string or one message of the assistant",
        ),
        (
            {"text": Dataset.from_list([{"prompt": [{"role": "user", "content": [{"text": "?"}]}], "completion": ""}])},
            {"text": 1.0},
            "part 'text' has the prompt .*expected messages of role and content alone, with strings as content",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_mixed_is_refused(parts, shares, message):
    with pytest.raises(ValueError, match=message):
        mix(parts, shares)


# ------------------------------------------------------------------------------------------------------------ captions


def described(*rows):
    """Rows of (id, R(c), caption, trajectory, reward), the image as red as the row's number."""
    names = ("id", "caption_reward", "caption", "completion", "reward")
    whole = [
        {**dict(zip(names, row, strict=True)), "prompt": [{"role": "user", "content": "How many?"}]} for row in rows
    ]
    kinds = {"id": Value("string"), "caption_reward": Value("float64"), "caption": Value("string")}
    kinds |= {"completion": Value("string"), "reward": Value("float64"), "prompt": List(MESSAGE)}
    kinds |= {"images": List(Image(mode="RGB"))}
    return Dataset.from_list([{**row, "images": [image(n)]} for n, row in enumerate(whole)], features=Features(kinds))


DESCRIBED = (  # one caption with two trajectories, one that some were wrong about, one whose trajectory does not earn
    ("q.1#0.3", 1.0, "Two cats.", "<think>2</think> 2", 1.0),
    ("q.1#0.5", 1.0, "Two cats.", "2", 1.0),
    ("q.2#1.0", 0.875, "A dog?", "1", 1.0),
    ("q.3#7.2", 1.0, "No owl.", "<think>0</think> 0", 0.0),
)


def test_captions_beside_the_trajectories(monkeypatch):
    """Table A2, DI: each caption whose trajectories are all right once, as what is said to the prompt for captions."""
    with monkeypatch.context() as refusing:
        refusing.setattr(Image, "decode_example", None)  # would raise
        rows = with_captions(described(*DESCRIBED), "beside")
    *trajectories, first, second = rows
    assert [(row["id"], row["completion"], row["reward"]) for row in trajectories] == [
        (id_, text, reward) for id_, _, _, text, reward in DESCRIBED
    ]
    for row, (id_, said, red) in zip(
        (first, second), (("q.1#0", "Two cats.", 0), ("q.3#7", "No owl.", 3)), strict=True
    ):
        assert row["prompt"] == [{"role": "user", "content": CAPTION_PROMPT}]
        assert (row["id"], row["completion"], row["reward"]) == (id_, said, 1.0)
        assert [image.getpixel((0, 0)) for image in row["images"]] == [(red, 0, 0)]
    asked = with_captions(described(*DESCRIBED), "beside", caption_prompt="Describe.")["prompt"]
    assert [prompt[0]["content"] for prompt in asked] == ["How many?"] * 4 + ["Describe."] * 2
    mixed = mix({"sophia": rows}, {"sophia": 1.0}, thinking_prompt=THINKING_PROMPT)
    under = {row["completion"]: row["prompt"][0]["role"] for row in mixed}
    assert {text for text, role in under.items() if role == "system"} == {"<think>2</think> 2"}


def test_captions_before_the_trajectories():
    """Table A2, H: connected by an empty line; the caption that some were wrong about is left out."""
    rows = with_captions(described(*DESCRIBED), "before")
    assert rows["completion"][:] == [
        "Two cats.\n\n<think>2</think> 2",
        "Two cats.\n\n2",
        "1",
        "No owl.\n\n<think>0</think> 0",
    ]
    assert rows["reward"][:] == [1.0, 1.0, 1.0, 0.0]
    assert [images[0].getpixel((0, 0))[0] for images in rows["images"]] == [0, 1, 2, 3]


def test_without_such_captions_the_trajectories_stay_alone():
    rows = described(DESCRIBED[2])
    assert with_captions(rows, "none") is rows
    for how in ("beside", "before"):
        assert with_captions(rows, how).to_list() == rows.to_list()


@pytest.mark.parametrize(
    ("rows", "how", "message"),
    [
        (described(*DESCRIBED), "behind", "how is 'behind', expected one of .*'none', 'beside', 'before'"),
        (made(2), "before", r"lack \['caption', 'caption_reward'\], which `mmreason trajectories` writes"),
        (described(*DESCRIBED).add_column("behavior_logps", [[-1.0]] * 4), "beside", "captions have none. Fix: sample"),
    ],
)
def test_captions_that_cannot_be_added_are_refused(rows, how, message):
    with pytest.raises(ValueError, match=message):
        with_captions(rows, how)
