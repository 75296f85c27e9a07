"""SOPHIA's data: who sees what, who is rewarded, what is counted, and who reasons about what."""

import pytest
from datasets import Dataset, Features, Image
from scripted import Scripted, image, reds, said
from scripted_sophia import (
    NAMES,
    WORKED,
    idle,
    idle_large,
    made,
    place_of,
    policy,
    questions,
    reasoner,
    right,
    selected,
    wrong,
)

from trl_mmreason.generation import Failure, Sample, SamplingParams
from trl_mmreason.generation.engine import UnsuitableEngine
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.jobs.store import Store
from trl_mmreason.sophia.mixture import with_captions
from trl_mmreason.sophia.prompts import CAPTION_PROMPT, THINKING_PROMPT, reasoning_prompt
from trl_mmreason.sophia.selection import CAPTIONS, HARD_TRAJECTORIES, TRAJECTORIES, Sampled, UnknownLengths

# ---------------------------------------------------------------------------------------------------------- the method


def test_the_worked_example(tmp_path):
    """R(A) = 7/8 = 0.875 is above 0.75, R(B) = 6/8 = 0.75 is not, though its shortest is shorter."""
    data = made(tmp_path / "s.sqlite")
    (row,) = data.rows
    assert reds(row.pop("images")) == [0]
    assert row == {
        "id": "id of cats#0.0",
        "prompt": questions()[0]["prompt"],
        "completion": right(30),
        "reward": 1.0,
        "caption_reward": 0.875,
        "caption": "caption 0 of cats",
    }
    assert data.rows.column_names == ["id", "prompt", "images", "completion", "reward", "caption_reward", "caption"]
    assert (data.questions, data.captions, data.trajectories) == (1, Sampled(2, 0, 0), Sampled(16, 0, 0))
    assert data.right == 13
    assert str(data) == (
        "kept 1 of 1 questions\ncaptions: 2, 0 cut by the length limit, 0 failed\n"
        "trajectories: 16, 0 cut by the length limit, 0 failed, 13 right\n1 rows"
    )


def test_who_sees_what(tmp_path):
    """The policy images without the question, the reasoner the question without images, the rows no caption."""
    names = ["cats", "dogs"]
    parties = policy(), reasoner(dict.fromkeys(names, WORKED))
    data = made(tmp_path / "s.sqlite", questions(names, images={"dogs": 2}), *parties, unselected=True)
    captions, trajectories = (party.asked for party in parties)
    assert len(captions) == 2 * 2
    assert all(request.messages == [{"role": "user", "content": CAPTION_PROMPT}] for request in captions)
    assert not any("How many" in repr(request) or "Be brief" in repr(request) for request in captions)
    assert [len(request.images) for request in captions] == [1, 1, 2, 2]
    assert len(trajectories) == 2 * 2 * 8
    assert not any(request.images for request in trajectories)
    assert not any("Be brief" in repr(request) for request in trajectories)
    assert trajectories[8].messages == [
        {"role": "user", "content": reasoning_prompt("How many cats?", "caption 1 of cats")}
    ]
    assert len({request.seed for request in captions + trajectories}) == 4 + 32
    assert len(data.rows) == 32
    assert not any("caption" in repr((row["prompt"], row["completion"])) for row in data.rows)


def test_a_real_policy_describes(checkpoints, tmp_path):
    engine = TransformersEngine(checkpoints("qwen2_5_vl"), dtype="float32")
    asked = Scripted(lambda request, times: right(20 + times), kind="reasoner")
    data = made(tmp_path / "s.sqlite", None, engine, asked, caption_sampling_params=SamplingParams(max_new_tokens=4))
    with Store(tmp_path / "s.sqlite") as store:
        captions = [record.payload for record in store.records(CAPTIONS)]
    assert all(1 <= caption["tokens"] <= 4 for caption in captions)
    assert {said(request)[0] for request in asked.asked} == {
        reasoning_prompt("How many cats?", caption["turns"][0]["text"]) for caption in captions
    }
    assert data.rows["completion"][:] == [right(20)]


ALL_RIGHT = [[right(20 + n) for n in range(8)]] * 2
ONE_RIGHT = [[right(20)] + [wrong(9)] * 7] * 2
NONE_RIGHT = [[wrong(9)] * 8] * 2


def test_questions_without_a_row_are_counted(tmp_path):
    rows = questions(["cats", "dogs", "owls", "bees"], images={"dogs": 0}, answers={"owls": ""}, category="counting")
    parties = policy(), reasoner({"cats": ONE_RIGHT, "bees": NONE_RIGHT})
    data = made(tmp_path / "s.sqlite", rows, *parties)
    assert len(data.rows) == data.questions == 0
    assert data.dropped == {
        "no image": 1,
        "the gold answer cannot be used": 1,
        "no caption above the threshold": 1,
        "no right trajectory": 1,
    }
    assert {place_of(request)[0] for request in parties[1].asked} == {"cats", "bees"}
    assert len(parties[0].asked) == 2 * 2  # nobody is asked about what can become nothing
    assert str(data).splitlines()[:2] == ["kept 0 of 4 questions", "dropped 1: no image"]
    assert data.rows.column_names == ["id", "prompt", "images", "completion", "reward", "caption_reward", "caption"]


def test_a_data_set_of_single_images(tmp_path):
    rows = questions(["cats", "dogs"]).to_list()
    singles = Dataset.from_list(
        [{**row, "image": image(0) if "cats" in row["id"] else None} for row in rows],
        features=Features({**questions().features, "image": Image()}),
    ).remove_columns("images")
    data = made(tmp_path / "s.sqlite", singles)
    assert data.dropped == {"no image": 1}
    assert data.rows[0]["image"].getpixel((0, 0)) == (0, 0, 0)


# ------------------------------------------------------------------------------------------------------------ selection


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "ids"),
    [
        ({}, ["0.0"]),
        ({"keep": 3}, ["0.0", "0.1", "0.2"]),
        ({"keep": 99}, [f"0.{n}" for n in range(7)]),
        ({"threshold": 0.74}, ["1.0"]),
        ({"threshold": 0.74, "keep": 4}, ["0.0", "0.1", "1.0", "1.1"]),  # 30 and 20, 40 and 30 tokens
        ({"threshold": 0.875}, []),
        ({"rule": "without_caption_reward"}, ["1.0"]),
        ({"rule": "without_shortest", "keep": 99}, [f"0.{n}" for n in range(7)]),
        ({"rule": "random", "keep": 99}, [f"{k}.{n}" for k in range(2) for n in range(8)]),
        ({"captions": 1, "trajectories": 4, "threshold": 0.99}, ["0.0"]),  # the first 4 are all right
    ],
)
def test_another_selection_asks_nobody(tmp_path, settings, ids):
    made(tmp_path / "s.sqlite")
    assert selected(tmp_path / "s.sqlite", **settings) == ids


def test_what_is_drawn_is_drawn_for_each_question_and_the_same_again(tmp_path):
    path, rows = tmp_path / "s.sqlite", questions(NAMES)
    made(path, rows, reasoner_=reasoner(ALL_RIGHT))
    drawn = selected(path, rows, rule="random", keep=2)
    assert drawn == selected(path, rows, rule="random", keep=2)
    assert len(drawn) == 8
    assert len({tuple(drawn[start : start + 2]) for start in (0, 2, 4, 6)}) > 1


def test_the_others_come_with_reward_zero(tmp_path):
    data = made(tmp_path / "s.sqlite", unselected=True)
    assert data.rows["id"][:] == [f"id of cats#{k}.{n}" for k in range(2) for n in range(8)]
    assert data.rows["reward"][:] == [1.0] + [0.0] * 15
    assert data.rows["caption_reward"][:] == [0.875] * 8 + [0.75] * 8
    assert data.rows["caption"][:] == ["caption 0 of cats"] * 8 + ["caption 1 of cats"] * 8
    assert data.rows["completion"][:] == [text for texts in WORKED for text in texts]
    assert data.questions == 1


def test_more_captions_and_trajectories_ask_for_the_missing_alone(tmp_path):
    path = tmp_path / "s.sqlite"
    script = [ALL_RIGHT[0]] * 3
    made(path, reasoner_=reasoner(script), captions=1, trajectories=3)
    parties = Scripted(lambda request, times: f"caption {times + 1} of cats"), Scripted(lambda *_: right(9), "reasoner")
    data = made(path, None, *parties, captions=3, trajectories=5)
    assert len(parties[0].asked) == 2
    assert [place_of(request)[1] for request in parties[1].asked] == [0] * 2 + [1] * 5 + [2] * 5
    assert data.rows["id"][:] == ["id of cats#0.3"]


def test_images_are_copied_undecoded(tmp_path, monkeypatch):
    made(tmp_path / "s.sqlite", unselected=True)
    with monkeypatch.context() as refusing:
        refusing.setattr(Image, "decode_example", None)  # would raise
        data = made(tmp_path / "s.sqlite", unselected=True)
    assert data.rows[15]["images"][0].getpixel((0, 0)) == (0, 0, 0)


# --------------------------------------------------------------------------------------------------- cut and failed


def test_a_truncated_trajectory_counts_as_wrong_and_is_never_selected(tmp_path):
    """Right boxes in two of the eight: 6 of 8 are right, and the two are not even drawn at random."""
    path = tmp_path / "s.sqlite"
    script = [[right(30)] * 6 + [Sample(right(10), "length", [0] * 10)] * 2]
    data = made(path, reasoner_=reasoner(script), captions=1)
    assert data.trajectories == Sampled(8, 2, 0)
    assert data.dropped == {"no caption above the threshold": 1}
    assert "trajectories: 8, 2 cut by the length limit, 0 failed, 6 right" in str(data)
    assert selected(path, captions=1, threshold=0.74) == ["0.0"]
    assert selected(path, captions=1, rule="random", keep=8) == [f"0.{n}" for n in range(6)]
    with Store(path) as store:
        (record,) = store.find(TRAJECTORIES, [("id of cats#0", 7)])
    turn = {"text": right(10), "graded": ""}  # nothing of it is
    assert record.payload == {"turns": [turn], "finish_reasons": ["length"], "tokens": 10}
    assert len(made(path, reasoner_=idle(), captions=1, unselected=True).rows) == 6


@pytest.mark.parametrize("hard", [(), ("cats", "dogs")], ids=["none is hard", "all are hard"])
def test_a_reasoner_without_questions_is_asked_nothing(tmp_path, hard):
    rows, script = questions(["cats", "dogs"]), dict.fromkeys(["cats", "dogs"], WORKED)
    large, own = reasoner(script, kind="large reasoner"), reasoner(script)
    chosen = {"hard_reasoner": large if hard else idle_large(), "is_hard": lambda row: row["id"][6:] in hard}
    data = made(tmp_path / "s.sqlite", rows, reasoner_=idle() if hard else own, **chosen)
    assert data.trajectories.total == 2 * 2 * 8


def test_without_one_caption_nothing_is_made(tmp_path):
    torn = Scripted(lambda request, times: Failure("torn"))
    data = made(tmp_path / "s.sqlite", policy_=torn, reasoner_=idle(), retries=0)
    assert (len(data.rows), data.captions, data.trajectories) == (0, Sampled(2, 0, 2), Sampled(0, 0, 0))


def test_all_cut_off_is_said(tmp_path):
    script = [[Sample(right(10), "length")] * 8] * 2
    data = made(tmp_path / "s.sqlite", reasoner_=reasoner(script), rule="random")
    assert data.dropped == {"no trajectory that was sampled to its end": 1}


def test_a_truncated_caption_is_used_and_counted(tmp_path):
    cut = Scripted(lambda request, times: Sample(f"caption {times} of cats", "length" if times else "stop"))
    data = made(tmp_path / "s.sqlite", policy_=cut)
    assert data.captions == Sampled(2, 1, 0)
    assert data.trajectories.total == 16
    assert data.questions == 1


@pytest.mark.parametrize(("how", "learnt"), [("beside", "caption 0 of cats"), ("before", "caption 0 of cats\n\n")])
def test_a_truncated_caption_is_not_learnt(tmp_path, how, learnt):
    """With an end that it never had, though all trajectories from it are right."""
    cut = Scripted(lambda request, times: Sample(f"caption {times} of cats", "length" if times else "stop"))
    rows = made(tmp_path / "s.sqlite", policy_=cut, reasoner_=reasoner(ALL_RIGHT), unselected=True).rows
    assert (rows["caption_reward"][:], rows["caption"][:]) == ([1.0] * 16, ["caption 0 of cats"] * 8 + [None] * 8)
    described = [text for text in with_captions(rows, how)["completion"] if text.startswith("caption")]
    assert described == {"beside": [learnt], "before": [learnt + right(20 + n) for n in range(8)]}[how]


def test_what_failed_counts_as_wrong_until_it_is_asked_again(tmp_path):
    """7 of 8 with one failed are above 0.75, 6 of 8 with two failed are not."""
    path = tmp_path / "s.sqlite"
    script = [[right(30)] * 7 + [Failure("no")], [right(20)] * 6 + [Failure("no")] * 2]
    data = made(path, reasoner_=reasoner(script), retries=0)
    assert data.rows["id"][:] == ["id of cats#0.0"]
    assert data.trajectories == Sampled(16, 0, 3)
    assert "16, 0 cut by the length limit, 3 failed (retry_failed=True asks again), 13 right" in str(data)
    assert selected(path) == ["0.0"]  # nobody is asked without being told to
    again = Scripted(lambda request, times: right(10), kind="reasoner")
    data = made(path, reasoner_=again, retry_failed=True)
    assert [place_of(request)[1] for request in again.asked] == [0, 1, 1]
    assert data.rows["id"][:] == ["id of cats#0.7"]  # of 10 tokens, as 1.6 and 1.7 are
    assert (data.trajectories.failed, data.right) == (0, 16)


def test_a_caption_that_failed_is_not_reasoned_about(tmp_path):
    path = tmp_path / "s.sqlite"
    broken = Scripted(lambda request, times: Failure("the image is too large") if times else "caption 0 of cats")
    asked = reasoner()
    data = made(path, policy_=broken, reasoner_=asked, retries=0)
    assert (data.captions, data.trajectories.total) == (Sampled(2, 0, 1), 8)
    assert {place_of(request)[1] for request in asked.asked} == {0}
    quiet = Scripted(lambda request, times: pytest.fail("asked again"))
    assert made(path, policy_=quiet, reasoner_=idle()).captions == Sampled(2, 0, 1)  # nor without being told to
    late = Scripted(lambda request, times: "caption 1 of cats")
    data = made(path, policy_=late, retry_failed=True)
    assert (len(late.asked), data.captions, data.trajectories.total) == (1, Sampled(2, 0, 0), 16)


# ------------------------------------------------------------------------------------------ lengths, logprobs, thoughts


def unmeasured(texts):
    return [[Sample(text, "stop") for text in of_caption] for of_caption in texts]


def test_lengths_may_be_counted_where_the_engine_gives_none(tmp_path):
    path = tmp_path / "s.sqlite"
    texts = [[right(30), right(20)] + [right(40)] * 6, WORKED[1]]
    first = reasoner(unmeasured(texts))
    with pytest.raises(UnknownLengths, match="question 'id of cats'.* pass count_tokens.*--tokenizer"):
        made(path, reasoner_=first)
    assert len(first.asked) == 16  # and they are kept
    counted = []
    assert selected(path, count_tokens=lambda text: counted.append(text) or len(text)) == ["0.1"]
    assert counted == texts[0]  # those of caption B are no candidates
    assert selected(path, count_tokens=lambda text: -len(text)) == ["0.2"]
    assert selected(path, rule="random", keep=99) == [f"{k}.{n}" for k in range(2) for n in range(8)]
    assert selected(path, keep=8) == [f"0.{n}" for n in range(8)]  # no choice, no count


def test_lengths_that_are_counted_are_so_for_all_of_a_question(tmp_path):
    """The engine says 30 tokens of the first and nothing of the second; of characters they have 9 and 20."""
    script = [[Sample(right(9), "stop", [0] * 30), Sample(right(20), "stop")]]
    settings = {"captions": 1, "trajectories": 2, "count_tokens": len}
    made(tmp_path / "s.sqlite", reasoner_=reasoner(script), **settings)
    assert selected(tmp_path / "s.sqlite", **settings) == ["0.0"]
    assert selected(tmp_path / "s.sqlite", **{**settings, "count_tokens": lambda text: 40 - len(text)}) == ["0.1"]


def test_an_engine_without_log_probabilities_is_refused_at_its_first_batch(tmp_path):
    mute = reasoner()
    with pytest.raises(UnsuitableEngine, match="the reasoner's engine gives no log-probabilities .*'kind': 'reasoner'"):
        made(tmp_path / "s.sqlite", reasoner_=mute, sampling_params=SamplingParams(32768, logprobs=True))
    assert len(mute.asked) == 3  # a batch


def test_log_probabilities_are_recorded(tmp_path):
    """They tell the number of tokens too: 3, 2 and 1."""
    logprobs = [[-0.5, -0.25, -0.125], [-1.5, -0.75], [-2.0]]
    texts = [f"{n}</think> \\boxed{{7}}" for n in range(3)]
    spoken = [Sample(text, "stop", None, given) for text, given in zip(texts, logprobs, strict=True)]
    settings = {"captions": 1, "trajectories": 3, "keep": 2, "sampling_params": SamplingParams(32768, logprobs=True)}
    rows = made(tmp_path / "s.sqlite", reasoner_=reasoner([spoken]), **settings).rows
    assert rows.column_names[-1] == "behavior_logps"
    assert rows["behavior_logps"][:] == logprobs[1:]
    assert rows["completion"][:] == texts[1:]  # as they were sampled


def test_rows_that_think_are_trained_under_the_thinking_prompt(tmp_path):
    texts = ["<think>7</think> \\boxed{7}", "7</think> \\boxed{7}", "It is \\boxed{7}"]
    rows = made(tmp_path / "s.sqlite", reasoner_=reasoner([texts]), captions=1, trajectories=3, keep=3).rows
    question = {"role": "user", "content": "How many cats?"}
    thinking = [{"role": "system", "content": THINKING_PROMPT}, question]
    default = [{"role": "system", "content": "Be brief."}, question]
    assert rows["prompt"][:] == [thinking, thinking, default]
    assert rows["completion"][:] == [texts[0], f"<think>\n{texts[1]}", texts[2]]
    settings = {"captions": 1, "trajectories": 3, "keep": 3, "thinking_prompt": None}
    as_they_are = made(tmp_path / "s.sqlite", reasoner_=idle(), **settings)
    assert as_they_are.rows["prompt"][:] == [default] * 3


# ------------------------------------------------------------------------------------------------------- two reasoners


def test_hard_questions_go_to_another_reasoner(tmp_path):
    path = tmp_path / "s.sqlite"
    rows = questions(["cats", "dogs"], category={"cats": "easy", "dogs": "hard"})
    both = reasoner(ALL_RIGHT), reasoner(ALL_RIGHT, kind="large reasoner")
    told = {"hard_reasoner": both[1], "is_hard": lambda row: row["category"] == "hard" and "images" not in row}
    data = made(path, rows, reasoner_=both[0], **told)
    assert [{place_of(request)[0] for request in party.asked} for party in both] == [{"cats"}, {"dogs"}]
    assert [len(party.asked) for party in both] == [16, 16]
    assert data.rows["id"][:] == ["id of cats#0.0", "id of dogs#0.0"]
    assert data.trajectories == Sampled(32, 0, 0)
    with Store(path) as store:
        assert {record.id for record in store.records(HARD_TRAJECTORIES)} == {"id of dogs#0", "id of dogs#1"}
    # A question that becomes easy is answered anew by the other: no question's trajectories are of two reasoners.
    easy = reasoner(NONE_RIGHT)
    data = made(path, rows, reasoner_=easy)
    assert {place_of(request)[0] for request in easy.asked} == {"dogs"}
    assert (data.questions, data.trajectories.total, data.right) == (1, 32, 16)
    # Hard again, it has its first answers back, and only these; and whichever comes first in the data.
    for order in ([0, 1], [1, 0]):
        data = made(path, rows.select(order), policy(), idle(), **{**told, "hard_reasoner": idle_large()})
        assert (data.questions, data.trajectories.total, data.right) == (2, 32, 32)


@pytest.mark.parametrize("alone", [{"hard_reasoner": idle()}, {"is_hard": lambda row: True}])
def test_a_second_reasoner_needs_to_know_its_questions(tmp_path, alone):
    asked = policy()
    with pytest.raises(ValueError, match="expected both or neither"):
        made(tmp_path / "s.sqlite", policy_=asked, **alone)
    assert asked.asked == []
