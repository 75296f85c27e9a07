"""SOPHIA's data: nothing is asked twice, what is refused, several processes, and many long texts."""

import os
import re
import time
import tracemalloc
from dataclasses import asdict

import pytest
from datasets import Dataset
from processes import outcomes
from scripted import Scripted, image, said
from scripted_sophia import (
    WORKED,
    idle,
    made,
    name_of,
    policy,
    questions,
    reasoner,
    right,
    selected,
    with_prompt,
    wrong,
)

from trl_mmreason.generation import Sample, SamplingParams
from trl_mmreason.grading import Grader, JudgeGrader
from trl_mmreason.jobs import store as store_module
from trl_mmreason.jobs.store import Record, SettingsChanged, Store
from trl_mmreason.sophia.prompts import CAPTION_PROMPT, THINKING_PROMPT, reasoning_prompt
from trl_mmreason.sophia.sampling import OffPolicySampling, make_off_policy_data
from trl_mmreason.sophia.selection import CAPTIONS, TRAJECTORIES


def by_seed(**settings):
    """A reasoner whose answer follows from the seed alone, as that of a real one."""
    return Scripted(
        lambda request, times: (wrong if request.seed % 8 == 0 else right)(10 + request.seed % 97),
        **{"kind": "reasoner", **settings},
    )


def describer(**settings):
    def describe(request, times):
        return f"caption {request.seed % 10} of {name_of(request)}"

    return Scripted(describe, **settings)


@pytest.mark.parametrize("dies_at", [(3, None), (None, 0), (None, 17)])
def test_it_resumes_where_it_was_killed_and_asks_nothing_twice(tmp_path, dies_at):
    rows = questions(["owls", "cats", "dogs"])
    whole = describer(), by_seed()
    undisturbed = made(tmp_path / "undisturbed.sqlite", rows, *whole, keep=2, batch_size=1)
    dying = describer(dies_at=dies_at[0]), by_seed(dies_at=dies_at[1])
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "s.sqlite", rows, *dying, keep=2, batch_size=1)
    rest = describer(), by_seed()
    resumed = made(tmp_path / "s.sqlite", rows, *rest, keep=2, batch_size=1)
    assert resumed.rows.to_list() == undisturbed.rows.to_list()
    assert resumed[1:] == undisturbed[1:]
    assert len(resumed.rows) == 2 * resumed.questions > 0
    for first, second, engine in zip(dying, rest, whole, strict=True):
        assert [(said(r), r.seed) for r in first.asked + second.asked] == [(said(r), r.seed) for r in engine.asked]


def test_two_runs_are_equal_and_the_rows_stand_in_the_order_of_the_questions(tmp_path):
    rows = questions(["owls", "cats", "dogs"])
    first, second = (
        made(tmp_path / name, rows, describer(), by_seed(), keep=3, threshold=0.5, batch_size=size)
        for name, size in (("a.sqlite", 1), ("b.sqlite", 7))
    )
    assert first.rows.to_list() == second.rows.to_list()
    order = [id_.partition("#")[0] for id_ in first.rows["id"]]
    assert order == [f"id of {name}" for name in ("owls", "cats", "dogs") for _ in range(3)]
    assert first.rows["id"][:3] == sorted(first.rows["id"][:3])


def test_a_store_of_the_same_settings_and_other_texts_is_not_taken_for_this_one(tmp_path):
    """Rows are written to a cache: what stands there of another store must not come back."""
    texts = [
        made(tmp_path / f"{index}.sqlite", reasoner_=reasoner([[right(20)] * 8] * 2 if index else WORKED)).rows
        for index in range(2)
    ]
    assert [rows["completion"][0] for rows in texts] == [right(30), right(20)]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"caption_prompt": "Describe it."}, 'prompt: "Provide a highly'),
        ({"caption_sampling_params": SamplingParams(5)}, "sampling_params.max_new_tokens: 32768 → 5"),
        ({"sampling_params": SamplingParams(32768, 0.5)}, "sampling_params.temperature: 1.0 → 0.5"),
        ({"sampling_params": SamplingParams(32768, logprobs=True)}, "sampling_params.logprobs: False → True"),
        ({"reason": lambda question, caption: f"{caption} {question}"}, "prompt: 'Please read the following"),
        ({"seed": 1}, "seed: 0 → 1"),
        ({"policy_": Scripted(None, "other")}, "engine.kind: 'script' → 'other'"),
        ({"reasoner_": Scripted(None, "other")}, "engine.kind: 'reasoner' → 'other'"),
    ],
)
def test_other_settings_are_refused(tmp_path, settings, named):
    made(tmp_path / "s.sqlite")
    with pytest.raises(SettingsChanged, match=re.escape(named)):
        made(tmp_path / "s.sqlite", **settings)


def test_captions_of_an_older_version_are_refused(tmp_path):
    """They were kept as {"text", "finish_reason", "tokens"}, and their stage did not name a protocol."""
    older = {
        "engine": {"kind": "script"},
        "sampling_params": asdict(OffPolicySampling().caption_sampling_params),
        "prompt": CAPTION_PROMPT,
        "seed": 0,
    }
    with Store(tmp_path / "s.sqlite") as store:
        store.open_stage(CAPTIONS, older)
        store.save(CAPTIONS, [Record("id of cats", 0, "done", {"text": "caption 0 of cats", "finish_reason": "stop"})])
    with pytest.raises(SettingsChanged, match=rf"stage '{CAPTIONS}'[\s\S]*protocol: \(absent\) → "):
        made(tmp_path / "s.sqlite", reasoner_=idle())


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"rule": "longest"}, "rule is 'longest'"), ({"keep": 0}, "keep is 0"), ({"captions": 0}, "n=0")],
)
def test_what_is_out_of_range_is_refused_before_anything_is_asked(tmp_path, settings, message):
    asked = policy()
    with pytest.raises(ValueError, match=message):
        made(tmp_path / "s.sqlite", policy_=asked, **settings)
    assert asked.asked == []


ASKED = [{"role": "user", "content": "How many cats?"}]
IMAGE, TEXT = {"type": "image"}, {"type": "text", "text": "How many cats?"}


@pytest.mark.parametrize(
    ("prompt", "plain"),
    [
        ("How many cats?", ASKED),
        ([{"role": "user", "content": [IMAGE, TEXT]}], ASKED),
        ([{"role": "user", "content": [TEXT], "tool_calls": None}], ASKED),
        (
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many cats?", "name": None}],
            [{"role": "system", "content": "Be brief."}, *ASKED],
        ),
    ],
)
def test_whatever_form_a_prompt_has_its_texts_are_asked_and_trained_on(tmp_path, prompt, plain):
    asked = reasoner()
    data = made(tmp_path / "s.sqlite", with_prompt(prompt), reasoner_=asked)
    assert asked.asked[0].messages[0]["content"] == reasoning_prompt("How many cats?", "caption 0 of cats")
    assert data.rows["prompt"][:] == [plain]
    assert data.rows.features["prompt"] == questions().features["prompt"]
    thinking = reasoner([[f"<think>so</think> {right(9)}"] * 8] * 2)
    (row,) = made(tmp_path / "thinking.sqlite", with_prompt(prompt), reasoner_=thinking).rows
    assert row["prompt"] == [{"role": "system", "content": THINKING_PROMPT}, *ASKED]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (with_prompt([{"role": "assistant", "content": [TEXT, IMAGE]}]), "row 'id of cats' has the prompt .*Fix: move"),
        (with_prompt([{**ASKED[0], "name": "Ann"}]), "row 'id of cats' has the prompt .*role and content alone"),
        (with_prompt([{"role": "system", "content": "Be brief."}]), "row 'id of cats' asks nothing: its prompt is"),
        (questions().select([]), "make_off_policy_data: the data set has no rows"),
        (
            Dataset.from_list([{**questions()[0], "image_2": image(1)}]),
            "row 0, column 'image_2': it holds an image that",
        ),
        (questions().remove_columns("id"), r"the rows have the columns .* and lack \['id'\]"),
        (questions().remove_columns(["prompt", "answer"]), r"lack \['prompt', 'answer'\]"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_before_anything_is_asked(tmp_path, rows, message):
    asked = policy()
    with Store(tmp_path / "s.sqlite") as store, pytest.raises(ValueError, match=message):
        make_off_policy_data(rows, asked, idle(), store)
    assert asked.asked == []


def test_other_questions_under_the_same_ids_are_refused_and_more_of_them_go_on(tmp_path):
    path, asked = tmp_path / "s.sqlite", policy()
    made(path)
    other = with_prompt([{"role": "user", "content": "How many dogs?"}])
    for rows, named in ((other, "prompt"), (questions(answers={"cats": "8"}), "answer")):
        with pytest.raises(SettingsChanged, match=f"\n  {named} of 'id of cats'\n"):
            made(path, rows, policy_=asked)
    assert asked.asked == []
    made(path, with_prompt(ASKED), policy_=asked)  # the system message is shown to nobody
    both = dict.fromkeys(["dogs", "cats"], WORKED)
    made(path, questions(["dogs", "cats"]), asked, reasoner(both))
    assert [name_of(request) for request in asked.asked] == ["dogs"] * 2


def test_a_grader_is_known_again_by_what_it_says_of_itself(tmp_path):
    class Own(Grader):
        __repr__ = object.__repr__

    class Chat:
        def __init__(self, model):
            self.settings = {"model": model}

        def __call__(self, conversations):
            return ["0"] * len(conversations)

    for name, graders, other in (
        ("own", [Own(), Own()], Grader()),
        ("judge", [JudgeGrader(Chat("a")), JudgeGrader(Chat("a"))], JudgeGrader(Chat("b"))),
    ):
        path = tmp_path / f"{name}.sqlite"
        made(path, grader=graders[0])
        assert selected(path, grader=graders[1]) == ["0.0"]
        assert selected(path, grader=other) == ["0.0"]  # grades what there is
        with Store(path) as store:
            graded = [stage for stage in store.stages() if stage.startswith(f"{TRAJECTORIES}-verdicts-")]
        assert len(graded) == 2


def shared(folder):
    """Two questions, of which the first process takes longer to describe its own."""
    slow = 0.5 * (os.environ["RANK"] == "0")

    def describe(request, times):
        time.sleep(slow)
        return "Seven."

    parties = Scripted(describe), Scripted(lambda request, times: right(10), kind="reasoner")
    data = made(folder / "s.sqlite", questions(["cats", "dogs"]), *parties, trajectories=3)
    return {"captions": [*data.captions], "trajectories": [*data.trajectories], "ids": data.rows["id"][:]}


@pytest.mark.full
def test_processes_reason_about_each_other_s_captions(tmp_path):
    """The second has its question described before the first has: 2 · 2 captions and 2 · 2 · 3 trajectories in all."""
    ids = ["id of cats#0.0", "id of dogs#0.0"]
    assert outcomes(shared, 2, tmp_path) == [{"captions": [4, 0, 0], "trajectories": [12, 0, 0], "ids": ids}] * 2


# ---------------------------------------------------------------------------------------------------------------- scale


@pytest.mark.full
def test_the_texts_are_never_in_memory_together(tmp_path, monkeypatch):
    """400 trajectories of 50 kB are 20 MB; of them 8 are read at a time, and a few more are held than that."""
    monkeypatch.setattr(store_module, "RECORDS_A_PAGE", 8)
    path, rows, length = tmp_path / "s.sqlite", questions(["cats", "dogs"]), 50_000

    class Long:
        def __init__(self, kind, text):
            self.settings, self.text = {"kind": kind}, text

        def sample(self, requests, sampling_params):
            return [[Sample(self.text, "stop", [1])] for _ in requests]

    parties = Long("script", "caption 0 of cats"), Long("reasoner", right(length))
    settings = {"captions": 2, "trajectories": 100}
    made(path, rows, *parties, **settings)
    tracemalloc.start()
    data = made(path, rows, *parties, keep=5, **settings)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(text) for text in data.rows["completion"]] == [length] * 10
    assert peak < 5e6
