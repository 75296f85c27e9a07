"""Labels of steps: by continuations counted by hand, by a judge, and by a real policy from end to end."""

import hashlib

import pytest
from scripted import Scripted, image, questions_of, reds
from solution_chains import chain_of_steps, prefixes
from support import SUPERVISED_RUN, maker

from trl_mmreason.chain_of_step.chains import Path, read_path
from trl_mmreason.chain_of_step.config import ChainOfStepSFTConfig, ProcessRewardConfig
from trl_mmreason.chain_of_step.data import (
    JUDGED,
    MONTE_CARLO,
    annotate_by_judge,
    annotate_by_monte_carlo,
    chains_of,
    make_step_data,
)
from trl_mmreason.chain_of_step.miniature import label_drawn_chains, labelled_chains
from trl_mmreason.chain_of_step.process_reward_trainer import ProcessRewardTrainer
from trl_mmreason.chain_of_step.prompts import JUDGE_PROMPT, step_judge_message
from trl_mmreason.chain_of_step.protocols import sample_paths
from trl_mmreason.chain_of_step.sft import ChainOfStepSFTTrainer
from trl_mmreason.chain_of_step.template import (
    ANSWER_END,
    ANSWER_START,
    REASONING_END,
    Chain,
    Step,
    parse_chain,
    render_chain,
)
from trl_mmreason.generation import Failure, SamplingParams, derive_seed
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.grading import Grader, JudgeGrader
from trl_mmreason.jobs.store import SettingsChanged, Store
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import ERRORS, solve
from trl_mmreason.miniature.tasks import make_problems, problems_dataset
from trl_mmreason.miniature.teacher import KnownTruthTeacher
from trl_mmreason.miniature.truth import true_labels

STEPS = [Step("Look", "There are 3 and 4.", "Plain."), Step("Add", "3+4=7", "Twice."), Step("Say", "It is 7.", "Yes.")]


def chain(answer, steps=STEPS):
    return render_chain(Chain(steps, answer))


def ending(answer):
    """What follows a step when the answer comes next."""
    return f"{REASONING_END}{ANSWER_START}{answer}{ANSWER_END}"


def questions(names, answer="7"):
    rows = [
        {
            "id": name,
            "prompt": [{"role": "user", "content": f"How many {name}?"}],
            "answer": [answer, "seven"],
            "images": [image(index)] * index,
        }
        for index, name in enumerate(names)
    ]
    return questions_of(rows)


def chains(*answers):
    """One chain a question, "cats" with the first answer, and so on."""
    named = dict(zip(["cats", "dogs", "eels"], answers, strict=False))
    paths = {name: [Path(0, read_path(chain(answer)), 9, answer == "7")] for name, answer in named.items()}
    return chains_of(questions(named), paths).rows


# -------------------------------------------------------------------------------------------------------------- chains


def test_whole_chains_are_kept_and_others_counted():
    texts = {
        "cats": [chain("7"), "It is 7.", chain("7"), chain("8"), f"{ANSWER_START}7{ANSWER_END}"],
        "dogs": [chain(None), chain("7") + "7", chain("7")],
    }
    paths = {
        name: [Path(index, read_path(text), 9, read_path(text).answer == "7") for index, text in enumerate(found)]
        for name, found in texts.items()
    }
    paths["eels"] = [Path(0, read_path(chain("7")), 9, None)]
    found = chains_of(questions(["cats", "dogs", "eels", "owls"]), paths)  # the sampling of owls failed
    assert found.rows.column_names == ["id", "prompt", "images", "answer", "completion", "correct"]
    assert found.rows["id"][:] == ["cats#0", "cats#3", "dogs#2"]
    assert found.rows["completion"][:] == [chain("7"), chain("8"), chain("7")]
    assert found.rows["correct"][:] == [True, False, True]
    assert found.rows[2]["prompt"] == [{"role": "user", "content": "How many dogs?"}]
    assert [reds(row["images"]) for row in found.rows] == [[], [], [1]]
    reasons = ["no_chain", "repeated", "no_step", "no_answer", "malformed", "the gold answer cannot be used"]
    assert found.dropped == dict.fromkeys(reasons, 1)
    assert str(found).splitlines()[0] == "kept 3 of 9 chains"


def test_letters_are_graded_by_their_choices(tmp_path):
    problem = make_problems(["adding"], 1, multiple_choice=True)[0]
    rows = problems_dataset([problem])
    paths = {problem.id: [Path(0, read_path(chain_of_steps(solve(problem))), 9, True)]}
    found = chains_of(rows, paths).rows
    assert found[0]["choices"] == problem.choices
    result = problem.choices[problem.answer]
    policy = Scripted(lambda request, times: [ending(problem.answer), ending(result), ending("Z"), ending("")][times])
    with Store(tmp_path / "s.sqlite") as store:
        labelled = annotate_by_monte_carlo(found, policy, store, n=4).rows
    assert labelled["step_labels"][:] == [[0.5] * 4]


def test_continuations_are_graded_with_the_tolerance_of_their_row(tmp_path):
    rows = questions(["cats"], "100").add_column("tolerance", [0.05]).add_column("hint", ["A number."])
    within = Scripted(lambda *_: ending("103"))
    with Store(tmp_path / "s.sqlite") as store:
        paths = sample_paths(rows, Scripted(lambda *_: chain("103")), store, "paths", n=1)
        chains = chains_of(rows, paths).rows
        labelled = annotate_by_monte_carlo(chains, within, store, n=1).rows
    assert chains["hint"][:] == ["A number."]  # which a judge is shown
    assert labelled["answer_label"][:] == [1.0]
    assert labelled["step_labels"][:] == [[1.0] * 3]
    assert "tolerance" not in labelled.column_names


# --------------------------------------------------------------------------------------------------------- Monte Carlo

# What four continuations behind each step come to.
BEHIND = [
    [chain("7")[len(prefixes(Chain(STEPS, "7"))[0]) :], ending("7"), ending("seven"), ending("8")],  # 3 of 4 are right
    [ending("8"), "It is 7.", ending("7")[:-1], ending("7") + "!"],  # none comes to an answer that is right
    [ending("9"), ending("7"), "", ending("8")],  # 1 of 4
]


def number_of(request):
    """Which continuation of its step is asked for: its seed says so, however many were asked before."""
    animal, steps = request.messages[0]["content"].split()[2].rstrip("?"), read_path(request.prefix).steps
    digest = hashlib.sha256(request.prefix.encode()).hexdigest()[:8]
    ids = [f"{animal}#{path}/{steps}-{digest}" for path in range(6)]
    (number,) = (k for id_ in ids for k in range(4) if derive_seed(0, id_, k) == request.seed)
    return number


def policy(**settings):
    return Scripted(lambda request, times: BEHIND[read_path(request.prefix).steps - 1][number_of(request)], **settings)


def continued(path, rows, party=None, **settings):
    with Store(path) as store:
        return annotate_by_monte_carlo(rows, party or policy(), store, **{"n": 4, "batch_size": 1, **settings})


def test_a_step_s_label_is_the_share_of_continuations_that_end_rightly(tmp_path):
    party, rows = policy(), chains("7", "8")
    soft = continued(tmp_path / "s.sqlite", rows, party)
    assert soft.rows.column_names == ["id", "prompt", "images", "completion", "step_labels", "answer_label"]
    assert soft.rows["id"][:] == ["cats#0", "dogs#0"]
    assert soft.rows["step_labels"][:] == [[0.75, 0.0, 0.25]] * 2
    assert soft.rows["answer_label"][:] == [1.0, 0.0]
    assert soft.rows["completion"][:] == rows["completion"][:]
    assert [reds(row["images"]) for row in soft.rows] == [[], [1]]
    assert soft.dropped == {}
    tokens = 2 * sum(len(text) for texts in BEHIND for text in texts)  # the engine has one a character
    assert soft.tokens == tokens
    assert str(soft) == f"kept 2 of 2 chains\n{tokens} tokens sampled for the labels"

    again = policy()
    hard = continued(tmp_path / "s.sqlite", rows, again, labels="hard")
    assert again.asked == []
    assert hard.rows["step_labels"][:] == [[1.0, 0.0, 1.0]] * 2


def test_each_step_is_continued_from_the_chain_as_it_was_written(tmp_path):
    spaced = chain("7").replace("<|reasoning_proceed|>", "\n<|reasoning_proceed|>\n")
    rows = chains_of(questions(["cats"]), {"cats": [Path(5, read_path(spaced), 9, True)]}).rows
    party = policy()
    continued(tmp_path / "s.sqlite", rows, party)
    first, second, third = dict.fromkeys(request.prefix for request in party.asked)
    assert first == prefixes(Chain(STEPS))[0]
    assert second.startswith(first + "\n<|reasoning_proceed|>\n")
    assert spaced == third + ending("7")
    assert len({request.seed for request in party.asked}) == len(party.asked) == 3 * 4


def test_the_policy_sees_question_and_images_and_never_the_answer(tmp_path):
    gold = "GOLD-73129"
    rows = chains_of(questions(["cats", "dogs"], gold), {"dogs": [Path(0, read_path(chain("8")), 9, False)]}).rows
    party, judge = policy(), Scripted(lambda request, times: "### Step Label: [1,1,1]")
    continued(tmp_path / "s.sqlite", rows, party)
    for request in party.asked:
        assert request.messages == [{"role": "user", "content": "How many dogs?"}]
        assert reds(request.images) == [1]
        assert gold not in repr(request)
    judged(tmp_path / "s.sqlite", rows, judge)
    assert gold in repr(judge.asked)


def test_a_chain_is_dropped_if_a_step_of_it_could_not_be_sampled(tmp_path):
    def answer(request, times):
        fails = "dogs" in request.messages[0]["content"] and read_path(request.prefix).steps == 2
        return Failure("too long") if fails else BEHIND[0][number_of(request)]

    rows = chains("7", "7", "7")
    some = continued(tmp_path / "s.sqlite", rows, Scripted(answer))
    assert some.rows["id"][:] == ["cats#0", "eels#0"]
    assert some.dropped == {"sampling failed": 1}
    none = continued(tmp_path / "none.sqlite", rows, Scripted(lambda request, times: Failure("too long")))
    assert none.rows.column_names == some.rows.column_names
    assert (len(none.rows), none.dropped) == (0, {"sampling failed": 3})
    party = policy()
    again = continued(tmp_path / "s.sqlite", rows, party, retry_failed=True)
    assert again.dropped == {}
    assert again.rows["step_labels"][1] == [0.75, 0.0, 0.75]
    assert len(party.asked) == 4


def test_a_chain_is_dropped_if_a_judge_left_a_continuation_of_it_open(tmp_path):
    def answer(request, times):
        return ending("7") if "cats" in request.messages[0]["content"] else BEHIND[0][number_of(request)]

    grader = JudgeGrader(lambda conversations: ["?"] * len(conversations))  # about what the rules call wrong
    some = continued(tmp_path / "s.sqlite", chains("7", "7"), Scripted(answer), grader=grader)
    assert some.rows["id"][:] == ["cats#0"]
    assert some.dropped == {"a continuation has no verdict": 1}


def test_sampling_resumes_where_it_was_killed(tmp_path):
    rows, whole = chains("7", "8"), policy()
    undisturbed = continued(tmp_path / "whole.sqlite", rows, whole)
    dying, rest = policy(dies_at=10), policy()  # amid the third step
    with pytest.raises(KeyboardInterrupt):
        continued(tmp_path / "s.sqlite", rows, dying)
    resumed = continued(tmp_path / "s.sqlite", rows, rest)
    assert resumed.rows.to_list() == undisturbed.rows.to_list()
    assert resumed.tokens == undisturbed.tokens
    assert dying.asked + rest.asked == whole.asked
    assert len(rest.asked) == 2 * 3 * 4 - 10


def test_processes_share_the_steps(tmp_path):
    """Each does its share of a stage before any asks for the result; here one after the other."""
    rows, alone = chains("7", "8"), policy()
    undisturbed = continued(tmp_path / "whole.sqlite", rows, alone)
    parties = policy(), policy()
    for rank, party in enumerate(parties):
        continued(tmp_path / "s.sqlite", rows, party, rank=rank, world_size=2)
    result = continued(tmp_path / "s.sqlite", rows, policy(dies_at=0))  # real ones wait for each other's verdicts
    assert result.rows.to_list() == undisturbed.rows.to_list()
    steps = [alone.asked[start : start + 4] for start in range(0, 24, 4)]
    assert [party.asked for party in parties] == [sum(steps[rank::2], []) for rank in (0, 1)]


def test_another_chain_under_the_same_id_is_labelled_anew(tmp_path):
    party, judge = policy(), Scripted(lambda request, times: label("[1,0,-1]"))
    for rows in (chains("7"), chains("8"), chains("7")):
        continued(tmp_path / "s.sqlite", rows, party)
        judged(tmp_path / "s.sqlite", rows, judge)
    # "7" and "8" differ behind the last step, so that continuations of one are those of the other
    assert (len(party.asked), len(judge.asked)) == (12, 2)
    edited = chains("7").map(lambda row: {"completion": row["completion"].replace("name_start|>", "name_start|>So ")})
    continued(tmp_path / "s.sqlite", edited, party)
    assert len(party.asked) == 24


def test_more_continuations_ask_for_those_that_are_missing_and_another_grader_for_none(tmp_path):
    party, rows = policy(), chains("7")
    few = continued(tmp_path / "s.sqlite", rows, party, n=2)
    assert few.rows["step_labels"][:] == [[1.0, 0.0, 0.5]]
    more = continued(tmp_path / "s.sqlite", rows, party)
    assert more.rows["step_labels"][:] == [[0.75, 0.0, 0.25]]
    assert len(party.asked) == 3 * 4
    lenient = continued(tmp_path / "s.sqlite", rows, party, grader=Grader(tolerance="lenient"))
    assert lenient.rows["step_labels"][:] == more.rows["step_labels"][:]
    assert len(party.asked) == 3 * 4


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"seed": 1}, "seed: 0 → 1"),
        ({"sampling_params": SamplingParams(top_p=0.9)}, "sampling_params.top_p: 0.95 → 0.9"),
        ({"party": policy(kind="other")}, "engine.kind: 'script' → 'other'"),
    ],
)
def test_continuations_that_were_drawn_in_another_way_do_not_mix(tmp_path, settings, named):
    continued(tmp_path / "s.sqlite", chains("7"))
    with pytest.raises(SettingsChanged, match=named):
        continued(tmp_path / "s.sqlite", chains("7"), **settings)


def test_what_cannot_be_meant_is_refused(tmp_path):
    for wrong in ({"n": 0}, {"labels": "both"}):
        with pytest.raises(ValueError, match=r"n=0 and labels='soft'|n=4 and labels='both'"):
            continued(tmp_path / "s.sqlite", chains("7"), **wrong)
    rows = questions(["cats"])
    for annotate in (continued, judged):
        with pytest.raises(ValueError, match=r"lack \['completion', 'correct'\]; chains_of makes them"):
            annotate(tmp_path / "s.sqlite", rows)


# --------------------------------------------------------------------------------------------------------------- judge


def judged(path, rows, party=None, **settings):
    with Store(path) as store:
        return annotate_by_judge(rows, party, store, **{"batch_size": 1, **settings})


def label(list_):
    return f"Step 1 is right, and so on.\n\n### Step Label: {list_}"


def test_ratings_become_labels_by_the_answer(tmp_path):
    judge = Scripted(lambda request, times: label("[1,0,-1]"))
    rows = chains("7", "8")
    found = judged(tmp_path / "s.sqlite", rows, judge)
    assert found.rows.column_names == ["id", "prompt", "images", "completion", "step_labels", "answer_label"]
    assert found.rows["step_labels"][:] == [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]  # Neutral counts if the answer is right
    assert found.rows["answer_label"][:] == [1.0, 0.0]
    assert found.rows["completion"][:] == [chain("7"), chain("8")]
    assert (found.dropped, found.tokens) == ({}, None)
    assert str(found) == "kept 2 of 2 chains"
    assert judge.asked[1].messages == [
        {"role": "system", "content": JUDGE_PROMPT},
        {"role": "user", "content": step_judge_message("How many dogs?", "7", STEPS)},
    ]
    assert reds(judge.asked[1].images) == [1]


def test_malformed_judgements_are_asked_for_again_and_then_counted(tmp_path):
    replies = {
        "cats": [label("[1,1]"), label("[1,1,1]")],
        "dogs": [label("[1,1,1,1]"), "Good.", label("[1,1]")],
        "eels": [Failure("busy")] * 3,
    }

    def reply(request, times):
        return next(found[times] for name, found in replies.items() if name in request.messages[1]["content"])

    judge = Scripted(reply)
    found = judged(tmp_path / "s.sqlite", chains("7", "7", "7"), judge)
    assert found.rows["id"][:] == ["cats#0"]
    assert found.dropped == {"malformed reply: another number of labels than of steps": 1, "sampling failed": 1}
    assert len(judge.asked) == len({request.seed for request in judge.asked}) == 2 + 3 + 3


def test_judging_resumes_where_it_was_killed(tmp_path):
    rows = chains("7", "8", "7")
    whole, dying, rest = (Scripted(lambda request, times: label("[1,0,1]"), dies_at=at) for at in (None, 2, None))
    undisturbed = judged(tmp_path / "whole.sqlite", rows, whole)
    with pytest.raises(KeyboardInterrupt):
        judged(tmp_path / "s.sqlite", rows, dying)
    resumed = judged(tmp_path / "s.sqlite", rows, rest)
    assert resumed.rows.to_list() == undisturbed.rows.to_list()
    assert dying.asked + rest.asked == whole.asked
    assert len(rest.asked) == 1


# ---------------------------------------------------------------------------------------------------------- miniature


def test_the_miniature_s_judge_labels_by_the_truth(tmp_path):
    problems = make_problems(["adding", "clock", "table"], 6, level=2)
    truth, paths = {}, {problem.id: [] for problem in problems}
    for problem in problems:
        for index, error in enumerate((None, *ERRORS)):
            solution, right = solve(problem, error=error), error is None
            truth[f"{problem.id}#{index}"] = [float(step in problem.steps) for step in solution.steps], float(right)
            paths[problem.id].append(Path(index, read_path(chain_of_steps(solution)), 9, right))
    rows = chains_of(problems_dataset(problems), paths).rows
    found = judged(tmp_path / "s.sqlite", rows, KnownTruthTeacher(problems), batch_size=5).rows
    assert found["id"][:] == list(truth)
    assert list(zip(found["step_labels"], found["answer_label"], strict=True)) == list(truth.values())


def test_all_of_the_miniature_s_chains_may_be_labelled_by_monte_carlo(tmp_path):
    problems = make_problems(["adding"], 3)
    whole = chain_of_steps(solve(problems[0]))
    party = Scripted(lambda request, _: whole.removeprefix(request.prefix))
    drawn = {"paths": 1, "monte_carlo": 9, "continuations": 1, "seed": 0, "sampling_params": SamplingParams()}
    label_drawn_chains(problems[:2], problems[2:], party, tmp_path, **drawn)
    train, held_out = labelled_chains(tmp_path)
    assert (len(train), {name: len(rows) for name, rows in held_out.items()}) == (2, {"seen": 1, "unseen": 1})


@pytest.mark.full
def test_a_real_policy_from_step_data_to_a_process_reward_model(tmp_path):
    """It is trained for a few seconds on two questions: it writes whole chains, and is right now and then."""
    problems = {problem.id: problem for problem in make_problems(["adding"], 2)}
    rows, sampling_params = problems_dataset(problems.values()), SamplingParams(200, 1.0, 0.95)
    teacher, base = KnownTruthTeacher(problems.values()), str(tmp_path / "base")
    run = {**SUPERVISED_RUN, "per_device_train_batch_size": 2}
    for part in build_model("qwen2_5_vl"):
        part.save_pretrained(base)
    with Store(tmp_path / "s.sqlite") as store:
        data = make_step_data(rows, teacher, store, min_steps=3).rows
        settings = {"max_steps": 40, "learning_rate": 1e-2, "lr_scheduler_type": "constant", "warmup_steps": 0}
        trainer = maker(ChainOfStepSFTTrainer, ChainOfStepSFTConfig, **run)(base, tmp_path / "sft", data, **settings)
        trainer.train()
        policy = TransformersEngine(trainer.model, trainer.processing_class)
        found = chains_of(rows, sample_paths(rows, policy, store, "paths", n=4, sampling_params=sampling_params)).rows
        assert len(found) >= 2
        continued = annotate_by_monte_carlo(found, policy, store, n=3, sampling_params=sampling_params)
        judged = annotate_by_judge(found, teacher, store)
        # the id of a unit ends with a digest of its text
        records = {}
        for record in store.records(MONTE_CARLO):
            records.setdefault(record.id.rpartition("-")[0], []).append(record.payload)
        assert {record.status for stage in (MONTE_CARLO, JUDGED) for record in store.records(stage)} == {"done"}

    assert continued.dropped == judged.dropped == {}
    assert continued.tokens == sum(one["tokens"] for sampled in records.values() for one in sampled) > 0
    for by_policy, by_truth in zip(continued.rows, judged.rows, strict=True):
        assert by_policy["id"] == by_truth["id"]
        problem, written = problems[by_policy["id"].rpartition("#")[0]], parse_chain(by_policy["completion"])
        shares = []
        for number, prefix in enumerate(prefixes(written), start=1):
            texts = [one["turns"][0]["text"] for one in records[f"{by_policy['id']}/{number}"]]
            shares.append(sum(read_path(prefix + text).answer == problem.answer for text in texts) / 3)
        assert by_policy["step_labels"] == pytest.approx(shares)
        assert by_truth["step_labels"] == [float(right) for right in true_labels(problem, written.steps)]
        assert by_truth["answer_label"] == by_policy["answer_label"] == float(written.answer == problem.answer)

    for labelled in (continued.rows, judged.rows):
        prm = maker(ProcessRewardTrainer, ProcessRewardConfig, **run)(
            base, tmp_path / "prm", labelled, max_steps=1, warmup_steps=0
        )
        prm.train()
        assert prm.state.global_step == 1
