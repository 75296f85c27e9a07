"""Step-level beam search: with every candidate and score known by hand, and with a real policy and reward model."""

from dataclasses import replace

import pytest
from chat_server import chat_server
from scripted_search import (
    B_C,
    END,
    PROCEED,
    START,
    TWO_STEPS,
    A,
    B,
    ScriptedEngine,
    ScriptedReward,
    answer,
    rows_of,
    searched,
    step,
)
from taught_policy import questions, reward_model, teach

from trl_mmreason.chain_of_step.chains import read_path
from trl_mmreason.chain_of_step.search import BeamSearched, part_sampling_params, step_beam_search
from trl_mmreason.chain_of_step.template import ANSWER_END, STEP_END, chain_ends
from trl_mmreason.generation import Failure, SamplingParams, derive_seed
from trl_mmreason.generation.server_engine import ServerEngine
from trl_mmreason.generation.transformers_engine import TransformersEngine


def test_the_best_candidate_of_each_stage_is_kept():
    (found,), engine, reward = searched({"sum": TWO_STEPS}, seed=5)
    assert found == BeamSearched(
        path=read_path(B_C + answer("7,0.9")),
        tokens=sum(len(text) for candidates in TWO_STEPS.values() for text in candidates),
        scores=(pytest.approx(0.7), pytest.approx(0.2), 0.9),
        worst=((A, pytest.approx(0.4)), ("\n" + PROCEED + step("d 0.1"), pytest.approx(0.1)), (answer("8,0.3"), 0.3)),
    )
    assert not found.is_open
    # what is kept is never asked for again
    seeds = [derive_seed(5, "search", "sum", stage) for stage in range(3)]
    assert engine.calls == [{"sum": (kept, 2, seed)} for kept, seed in zip(["", B, B_C], seeds, strict=True)]
    assert reward.calls == [[kept + text for text in candidates] for kept, candidates in TWO_STEPS.items()]


def test_questions_go_on_together_and_end_when_they_do():
    script = {"sum": TWO_STEPS, "short": {"": [A, A], A: [answer("1,0.1"), answer("2,0.2")]}}
    (_, short), engine, reward = searched(script)
    assert (short.path.answer, short.path.steps, short.problem) == ("2,0.2", 1, None)
    assert [sorted(call) for call in engine.calls] == [["short", "sum"], ["short", "sum"], ["sum"]]
    assert len(reward.calls) == 3
    assert reward.calls[0] == [A, B, A]  # what is said twice is scored once
    assert short.tokens == 2 * len(A) + len(answer("1,0.1")) + len(answer("2,0.2"))


def test_a_step_and_an_answer_in_one_stage_are_told_apart_by_their_own_scores():
    def after_a(score):
        more = A + PROCEED + step("more 0.6")
        return {"": [A, A], A: [PROCEED + step("more 0.6"), answer(f"7,{score}")], more: [answer("8,0.5")] * 2}

    # By the trajectory score with w = 0.2 the answer would win in both: 0.2 · 0.4 + 0.8 · 0.55 = 0.52 > 0.2 · 0.5 = 0.1
    (step_wins,), *_ = searched({"q": after_a(0.55)})
    assert (step_wins.path.answer, step_wins.path.steps) == ("8,0.5", 2)
    (answer_wins,), *_ = searched({"q": after_a(0.65)})
    assert (answer_wins.path.answer, answer_wins.path.steps) == ("7,0.65", 1)


def test_of_equal_scores_the_earliest_is_kept():
    first, second = START + step("first 0.5"), START + step("second 0.5")
    script = {"": [first, second], first: [answer("1,0.5"), answer("2,0.5")]}
    (found,), *_ = searched({"q": script})
    assert found.path.answer == "1,0.5"


MALFORMED = [
    "It is 7.",  # no chain
    "",  # ended at once
    START,
    START + "<|reasoning_step_start|><|reasoning_step_name_start|>cut 1",  # cut by the length limit
    START + "<|reasoning_step_start|>bare 1" + STEP_END,
    "<|answer_start|>7,1" + ANSWER_END,  # a chain has a step
    START + answer("7,1"),
    step("no start 1"),
    START + step("one 1") + PROCEED + step("two 1"),  # more than a part
]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_candidate_is_out_though_its_tokens_count(text):
    good = START + step("a 0.1")
    (found,), _, reward = searched({"q": {"": [text, good], good: [answer("7,0.9"), PROCEED]}})
    assert (found.path.text, found.problem) == (good + answer("7,0.9"), None)
    assert found.tokens == sum(map(len, [text, good, answer("7,0.9"), PROCEED]))
    assert reward.calls == [[good], [good + answer("7,0.9")]]


def test_when_all_candidates_are_malformed_the_search_of_that_question_ends():
    script = {"at once": {"": ["nothing", START]}, "later": {"": [A, B], B: [step("no delimiter 1"), END]}}
    script["sum"] = TWO_STEPS
    (at_once, later, fine), engine, reward = searched(script)
    assert at_once == BeamSearched(tokens=len("nothing" + START), problem="malformed")
    assert later.path.text == B
    assert (later.path.answer, later.path.steps, later.scores) == (None, 1, (pytest.approx(0.7),))
    assert later.problem == "malformed"
    assert fine.path.answer == "7,0.9"
    assert [sorted(call) for call in engine.calls] == [["at once", "later", "sum"], ["later", "sum"], ["sum"]]


def test_without_a_candidate_nothing_is_scored():
    (found,), _, reward = searched({"q": {"": ["no", "chain"]}})
    assert found.problem == "malformed"
    assert reward.calls == []


def test_behind_the_last_step_allowed_only_an_answer_counts():
    more = PROCEED + step("more 0.9")
    script = {"answers": {"": [A, B], B: [more, answer("7,0.1")]}, "continues": {"": [A, B], B: [more, more]}}
    (answers, unfinished), engine, _ = searched(script, max_steps=1)
    assert (answers.path.answer, answers.scores) == ("7,0.1", (pytest.approx(0.7), 0.1))
    assert (unfinished.path.text, unfinished.path.answer, unfinished.path.steps, unfinished.problem) == (
        B,
        None,
        1,
        "too_long",
    )
    assert unfinished.tokens == len(A) + len(B) + 2 * len(more)
    assert len(engine.calls) == 2


def test_a_failure_of_the_engine_is_that_question_s_own():
    failure = Failure("the image is too large")
    (at_once, later, fine), *_ = searched({"at once": {"": failure}, "later": {"": [A, B], B: failure}, "q": TWO_STEPS})
    assert at_once == later == failure
    assert fine.path.answer == "7,0.9"


def test_an_engine_that_does_not_count_tokens():
    class Server(ScriptedEngine):
        def answer(self, request):
            return [replace(sample, token_ids=None) for sample in super().answer(request)]

    (found,) = step_beam_search(rows_of("q"), Server({"q": TWO_STEPS}), ScriptedReward(), n=2)
    assert (found.path.answer, found.tokens) == ("7,0.9", None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 0}, "got n=0, max_steps=16"),
        ({"n": 1, "max_steps": 0}, "max_steps=0"),
        ({"n": 1, "sampling_params": SamplingParams(stop=("\n",))}, r"stop=\('\\n',\)"),
        ({"n": 2, "sampling_params": SamplingParams(temperature=0)}, "temperature=0; expected"),
    ],
)
def test_what_cannot_be_meant_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        searched({"sum": TWO_STEPS}, **settings)


def test_one_greedy_candidate_is_fine():
    sampling_params = SamplingParams(temperature=0)
    assert part_sampling_params(sampling_params, n=1, max_steps=1) == SamplingParams(
        temperature=0, stop=(STEP_END, ANSWER_END)
    )


# --------------------------------------------------------------------------------------------- a real policy and reward


@pytest.fixture(scope="module")
def engine():
    return TransformersEngine(*teach())


@pytest.fixture(scope="module")
def prm():
    return reward_model()


REAL = {"sampling_params": SamplingParams(max_new_tokens=40, top_p=0.95), "seed": 3}
QUESTIONS = questions()


class Recording:
    """An engine, and what it was asked and gave."""

    def __init__(self, engine):
        self.engine, self.settings, self.asked, self.given = engine, engine.settings, [], []

    def sample(self, requests, sampling_params):
        drawn = self.engine.sample(requests, sampling_params)
        self.asked += requests
        self.given += drawn
        return drawn


@pytest.mark.full
def test_a_real_policy_finds_answers_and_samples_no_kept_token_again(engine, prm):
    recording = Recording(engine)
    found = step_beam_search(QUESTIONS, recording, prm, n=6, **REAL)
    assert [search.problem for search in found] == [None, None]
    drawn = list(zip(recording.asked, recording.given, strict=True))
    for row, search in zip(QUESTIONS, found, strict=True):
        stages = [(request, samples) for request, samples in drawn if request.messages == row["prompt"]]
        assert len(stages) == len(search.scores) == search.path.steps + 1
        assert search.tokens == sum(len(sample.token_ids) for _, samples in stages for sample in samples)
        ends = chain_ends(search.path.text)
        kept = [search.path.text[:end] for end in (0, *ends.steps, ends.answer)]
        assert [request.prefix for request, _ in stages] == kept[:-1]
        for (request, samples), before, after in zip(stages, kept, kept[1:], strict=False):
            assert after in [before + sample.text for sample in samples]
            assert len(request.images) == len(row["images"])
        # the scores of the parts are those of the whole chain at its steps and answer
        scores = prm.score([{**row, "completion": search.path.text}])[0]
        assert search.scores == pytest.approx([*scores.steps.tolist(), scores.answer], abs=1e-5)


def said(search):
    """A search without its scores, which a batch changes in their last digits."""
    return search._replace(scores=(), worst=tuple(text for text, _ in search.worst))


def test_a_search_depends_on_its_own_row_and_seed_alone(engine, prm):
    together = step_beam_search(QUESTIONS, engine, prm, n=4, **REAL)
    alone = [step_beam_search([row], engine, prm, n=4, **REAL)[0] for row in QUESTIONS[::-1]][::-1]
    for one, other in zip(together, alone, strict=True):
        assert said(one) == said(other)
        assert one.scores == pytest.approx(other.scores, abs=1e-5)
    (other_seed,) = step_beam_search(QUESTIONS[:1], engine, prm, n=4, **{**REAL, "seed": 4})
    assert other_seed.tokens != together[0].tokens


def test_a_server_continues_chains_as_an_engine_in_process_does(engine, prm):
    class WithTheServersSeeds:
        def sample(self, requests, sampling_params):
            return engine.sample([replace(r, seed=derive_seed(r.seed, 0) >> 32) for r in requests], sampling_params)

    expected = step_beam_search(QUESTIONS, WithTheServersSeeds(), prm, n=4, **REAL)
    with chat_server(engine) as url:
        through = ServerEngine("tiny", url, extra_body={"return_token_ids": True}, max_retries=0)
        found = step_beam_search(QUESTIONS, through, prm, n=4, **REAL)
    assert [search.problem for search in found] == [None, None]
    for mine, theirs in zip(expected, found, strict=True):
        assert said(theirs) == said(mine)
