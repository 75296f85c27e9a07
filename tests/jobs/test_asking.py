"""Asking until a reply can be read: who is asked again, what is kept, what is counted."""

from collections import Counter

import pytest
from scripted import Scripted

from trl_mmreason.generation import Failure, Request, Sample, SamplingParams
from trl_mmreason.jobs.asking import (
    MalformedReply,
    ReplyCollector,
    ask_until_read,
    parsed_positions,
    reference_answer,
)
from trl_mmreason.jobs.store import SettingsChanged, Store
from trl_mmreason.replies import ReplyCount, UnsuitableEngine

# What each unit is answered, time after time.
REPLIES = {
    "once": ["3"],
    "twice": ["three", "4"],
    "cut": [Sample("5", "length"), "6"],
    "never": ["a", "b", "c"],
    "failing": [Failure("busy"), "no", Failure("too long: 4097 tokens")],
}


def engine(**settings):
    return Scripted(lambda request, times: REPLIES[request.messages[0]["content"]][times], **settings)


def request(unit):
    return Request([{"role": "user", "content": unit["id"]}])


def read(unit, reply):
    """A number, of which the unit may ask that it is even."""
    if not reply.isdecimal():
        raise MalformedReply("no number")
    return {"number": int(reply), "of": unit["id"]}


def ask(store, party, names=REPLIES, *, seed=0, attempts=3, sampling_params=None, settings=None):
    asking = ReplyCollector(store, sampling_params or SamplingParams(), attempts, seed, {"batch_size": 2, "retries": 5})
    return asking.ask("numbers", party, [{"id": name} for name in names], request, read, settings=settings or {})


def test_those_without_a_readable_reply_are_asked_again_with_another_seed():
    party = engine()
    requests = [request({"id": name}) for name in REPLIES]
    reads = [lambda reply, name=name: read({"id": name}, reply) for name in REPLIES]
    count = ReplyCount("The scorer", "a number", "")
    found = ask_until_read(party, SamplingParams(), requests, reads, 3, count)
    assert found == [
        {"number": 3, "of": "once"},
        {"number": 4, "of": "twice"},
        {"number": 6, "of": "cut"},
        Failure("malformed reply: no number"),
        Failure("too long: 4097 tokens"),
    ]
    order = [one.messages[0]["content"] for one in party.asked]
    assert order == [*REPLIES, "twice", "cut", "never", "failing", "never", "failing"]
    for name in REPLIES:
        seeds = [one.seed for one in party.asked if one.messages[0]["content"] == name]
        assert len(set(seeds)) == len(seeds)


def test_a_model_of_which_nothing_can_be_read_ends_the_run_early(tmp_path, caplog):
    """After 64 units of 500, of which the first is shown."""
    party = Scripted(lambda request, times: "a number")
    with Store(tmp_path / "s.sqlite") as store:
        with pytest.raises(
            UnsuitableEngine, match="numbers: the model: 64 replies in a row could not be read, the last"
        ):
            ask(store, party, [f"unit {k}" for k in range(500)])
        assert len(party.asked) == 3 * 64
        assert len(list(store.records("numbers"))) == 62  # batches of two
    assert "numbers: the model replied 'a number', which cannot be read" in caplog.messages[0]


def test_a_server_that_fails_from_the_start_ends_the_run_at_once(tmp_path):
    party = Scripted(lambda request, times: Failure("HTTP 503", of_server=True))
    with (
        Store(tmp_path / "s.sqlite") as store,
        pytest.raises(UnsuitableEngine, match="numbers: the model has answered none of 2 requests, the last bec"),
    ):
        ask(store, party, ["first", "second", "third", "fourth"], attempts=1)
    assert len(party.asked) == 2


def test_what_was_read_is_kept_and_what_was_not_is_counted(tmp_path):
    dropped = Counter({"before": 1})
    with Store(tmp_path / "s.sqlite") as store:
        replies = ask(store, engine())
        assert replies["twice"].payload == {"number": 4, "of": "twice"}
        names = ["never", "twice", "failing", "once"]
        assert parsed_positions(names, replies, dropped) == [1, 3]
        assert dropped == {"before": 1, "malformed reply: no number": 1, "sampling failed": 1}
        parsed_positions(["never"], replies, dropped, prefix="rating: ")
        assert dropped["rating: malformed reply: no number"] == 1

        again = engine()
        assert ask(store, again) == replies
        assert again.asked == []  # neither what is known nor what failed; `retry_failed` asks for that


def test_a_killed_run_resumes_and_gets_what_it_would_have_got(tmp_path):
    names = ["once", "twice", "cut"]
    with Store(tmp_path / "whole.sqlite") as store:
        whole = engine()
        undisturbed = ask(store, whole, names)
    with Store(tmp_path / "killed.sqlite") as store:
        # The first batch asks for two units and once again for the second of them; the next request is "cut".
        with pytest.raises(KeyboardInterrupt):
            ask(store, engine(dies_at=3), names)
        rest = engine()
        assert ask(store, rest, names) == undisturbed
    assert [one.messages[0]["content"] for one in rest.asked] == ["cut", "cut"]
    assert [one.seed for one in rest.asked] == [one.seed for one in whole.asked[3:]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed: 0 → 1"),
        ({"sampling_params": SamplingParams(temperature=0.5)}, "sampling_params.temperature: 1.0 → 0.5"),
        ({"settings": {"messages": {"user": "b"}}}, r"messages: \(absent\) → {'user': 'b'}"),
    ],
)
def test_replies_that_were_drawn_in_another_way_do_not_mix(tmp_path, change, named):
    with Store(tmp_path / "s.sqlite") as store:
        ask(store, engine(), ["once"])
        with pytest.raises(SettingsChanged, match=named):
            ask(store, engine(), ["once"], **change)
        with pytest.raises(SettingsChanged, match="engine.kind: 'script' → 'other'"):
            ask(store, engine(kind="other"), ["once"])


def test_no_attempt_is_refused(tmp_path):
    with Store(tmp_path / "s.sqlite") as store, pytest.raises(ValueError, match="attempts is 0, expected at least 1"):
        ask(store, engine(), attempts=0)


@pytest.mark.parametrize(
    ("answer", "told"), [(" 7 ", "7"), (7, "7"), (["7", "seven"], "7"), (("a",), "a"), ([], ""), (None, "")]
)
def test_of_several_answers_the_first_is_told(answer, told):
    assert reference_answer(answer) == told
