"""Step data: what the teacher is told, what becomes of its replies, and that a killed run resumes."""

import pytest
from scripted import Scripted, image, questions_of, reds
from solution_chains import chain_of_steps
from support import SUPERVISED_RUN, maker

from trl_mmreason.chain_of_step.config import ChainOfStepSFTConfig
from trl_mmreason.chain_of_step.data import make_step_data
from trl_mmreason.chain_of_step.prompts import STEP_DATA_PROMPT, step_data_prompt, steps_as_text
from trl_mmreason.chain_of_step.sft import ChainOfStepSFTTrainer
from trl_mmreason.chain_of_step.template import Chain, Step, render_chain
from trl_mmreason.generation import Failure, Sample, SamplingParams
from trl_mmreason.jobs.store import SettingsChanged, Store
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import CATEGORIES, make_problems, problems_dataset
from trl_mmreason.miniature.teacher import KnownTruthTeacher

STEPS = [Step("Look", "There are 3 and 4.", "Plain to see."), Step("Add", "3+4=7", "Done twice.")]


def written(answer, steps=STEPS):
    return f"{steps_as_text(steps)}\n\n### <Answer>\n{answer}"


OTHER = written("8")
WRONG_ANSWER = "malformed reply: another answer than the reference"

# question → what the teacher replies in turn, the gold answer, and the answer in the row or why there is none
SCRIPT = {
    "right": ([written("7")], "7", "7"),
    "in words": ([written(r"It is $\boxed{7.0}$.")], "7", r"It is $\boxed{7.0}$."),
    "one of two": ([written("seven")], ["7", "seven"], "seven"),
    "at last": ([OTHER, "Sure!", written("7")], "7", "7"),
    "too long": ([Sample(written("7"), "length"), Failure("busy"), written("7")], "7", "7"),
    "few": ([written("7", STEPS[:1])] * 3, "7", "malformed reply: too few steps"),
    "many": ([written("7", STEPS * 2)] * 3, "7", "malformed reply: too many steps"),
    "chatty": ([OTHER, OTHER, "Sure!"], "7", "malformed reply: text before the first step"),
    "cut": ([Sample(written("7"), "length")] * 3, "7", "malformed reply: cut by the length limit"),
    "other": ([OTHER] * 3, "7", WRONG_ANSWER),
    "other again": ([OTHER] * 3, "7", WRONG_ANSWER),
    "broken": ([Failure("the image is too large")] * 3, "7", "sampling failed"),
    "no gold": ([], "", "the gold answer cannot be used"),
}
MADE = ["right", "in words", "one of two", "at last", "too long"]


def question_of(request):
    return request.messages[-1]["content"].removeprefix("Question: ").partition("\n")[0]


def teacher(**settings):
    return Scripted(lambda request, times: SCRIPT[question_of(request)][0][times], **settings)


def questions(names=SCRIPT):
    rows = [
        {
            "id": f"id of {name}",
            "prompt": [{"role": "system", "content": "In steps."}, {"role": "user", "content": name}],
            "answer": SCRIPT[name][1] if isinstance(SCRIPT[name][1], list) else [SCRIPT[name][1]],
            "images": [image(index)] * (index % 3),
        }
        for index, name in enumerate(SCRIPT)
        if name in names
    ]
    return questions_of(rows)


def made(path, names=SCRIPT, party=None, **settings):
    settings = {"min_steps": 2, "max_steps": 3, "batch_size": 2, **settings}
    with Store(path) as store:
        return make_step_data(questions(names), party or teacher(), store, **settings)


def test_each_question_becomes_a_row_or_is_counted(tmp_path):
    party = teacher()
    data = made(tmp_path / "s.sqlite", party=party)
    assert data.rows.column_names == ["id", "prompt", "images", "completion"]
    assert data.rows["id"][:] == [f"id of {name}" for name in MADE]
    assert data.rows["completion"][:] == [render_chain(Chain(STEPS, SCRIPT[name][2])) for name in MADE]
    assert [reds(row["images"]) for row in data.rows] == [[], [1], [2, 2], [], [4]]
    assert data.rows[1]["prompt"] == questions()[1]["prompt"]
    reasons = [SCRIPT[name][2] for name in SCRIPT if name not in MADE]
    assert data.dropped == {reason: reasons.count(reason) for reason in reasons}
    assert str(data).splitlines()[0] == "kept 5 of 13 questions"
    assert f"dropped 2: {WRONG_ANSWER}" in str(data).splitlines()
    # Three are answered at once and the other nine asked three times; the one without a gold is never asked about.
    assert len(party.asked) == len({request.seed for request in party.asked}) == 3 + 9 * 3


def test_the_teacher_is_told_the_first_answer_and_shown_the_images(tmp_path):
    party = teacher()
    made(tmp_path / "s.sqlite", ["one of two"], party)
    (request,) = party.asked
    assert request.messages == [
        {"role": "system", "content": step_data_prompt(2, 3)},
        {"role": "user", "content": "Question: one of two\nReference answer: 7"},
    ]
    assert reds(request.images) == [2, 2]


def test_the_teacher_is_told_every_turn_of_a_question(tmp_path):
    """The reference answer is that to the last one."""
    said = zip(("system", "user", "assistant", "user"), ("Think.", "What is 3+4?", "7", "And plus 2?"), strict=True)
    prompt, party = [{"role": role, "content": text} for role, text in said], Scripted(lambda *_: written("9"))
    with Store(tmp_path / "s.sqlite") as store:
        rows = questions_of([{"id": "0", "prompt": prompt, "answer": "9"}])
        data = make_step_data(rows, party, store, min_steps=2)
    assert data.rows[0]["prompt"] == prompt
    (request,) = party.asked
    asked = "Question: User: What is 3+4?\nAssistant: 7\nUser: And plus 2?\nReference answer: 9"
    assert request.messages[-1]["content"] == asked


def test_the_paper_s_prompt_asks_for_five_to_ten_steps(tmp_path):
    assert step_data_prompt() == STEP_DATA_PROMPT
    changed = set(step_data_prompt(2, 3).splitlines()) - set(STEP_DATA_PROMPT.splitlines())
    assert changed == {"2. The number of steps must be no less than 2 and no more than 3."}
    long = Scripted(lambda request, times: written("7", STEPS * 3))
    with Store(tmp_path / "s.sqlite") as store:
        assert len(make_step_data(questions(["right"]), long, store).rows) == 1
        assert long.asked[0].messages[0]["content"] == STEP_DATA_PROMPT


def test_it_resumes_where_it_was_killed(tmp_path):
    whole, rest = teacher(), teacher()
    undisturbed = made(tmp_path / "whole.sqlite", MADE, whole)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "s.sqlite", MADE, teacher(dies_at=5))
    resumed = made(tmp_path / "s.sqlite", MADE, rest)
    assert resumed.rows.to_list() == undisturbed.rows.to_list()
    assert resumed.dropped == undisturbed.dropped == {}
    # Batches of two are saved: the first two questions are not asked about again.
    assert [question_of(request) for request in rest.asked[:2]] == ["one of two", "at last"]
    assert [request.seed for request in rest.asked] == [request.seed for request in whole.asked[2:]]
    again = teacher()
    assert made(tmp_path / "s.sqlite", MADE, again).rows.to_list() == resumed.rows.to_list()
    assert again.asked == []


def test_what_failed_is_asked_again_when_told_to(tmp_path):
    asked, answer = ["right", MADE[-1]], teacher().answer
    broken = Scripted(
        lambda request, times: Failure("401") if question_of(request) == "right" else answer(request, times)
    )
    data = made(tmp_path / "s.sqlite", asked, broken)
    assert data.rows.column_names == ["id", "prompt", "images", "completion"]
    assert data.dropped == {"sampling failed": 1}
    assert len(made(tmp_path / "s.sqlite", asked).rows) == 1
    assert len(made(tmp_path / "s.sqlite", asked, retry_failed=True).rows) == 2


def test_where_all_failed_it_is_asked_again(tmp_path):
    assert len(made(tmp_path / "s.sqlite", ["right"], Scripted(lambda request, times: Failure("401"))).rows) == 0
    assert len(made(tmp_path / "s.sqlite", ["right"]).rows) == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"seed": 1}, "seed: 0 → 1"),
        ({"max_steps": 4}, "messages.system: "),
        ({"sampling_params": SamplingParams(max_new_tokens=5)}, "sampling_params.max_new_tokens: 1024 → 5"),
        ({"party": teacher(kind="other")}, "engine.kind: 'script' → 'other'"),
    ],
)
def test_other_settings_are_refused(tmp_path, settings, named):
    made(tmp_path / "s.sqlite", ["right"])
    with pytest.raises(SettingsChanged, match=named):
        made(tmp_path / "s.sqlite", ["right"], **settings)


def test_what_is_out_of_range_is_refused_before_anything_is_asked(tmp_path):
    for wrong in ({"min_steps": 0}, {"min_steps": 4}, {"attempts": 0}):
        party = teacher()
        with pytest.raises(ValueError, match=r"got [04] to 3 steps|attempts is 0"):
            made(tmp_path / "s.sqlite", party=party, **wrong)
        assert party.asked == []


def test_the_miniature_s_teacher_writes_right_chains_that_can_be_trained_on(tmp_path, checkpoints):
    problems = make_problems(CATEGORIES, 7) + make_problems(CATEGORIES, 7, level=3, multiple_choice=True)
    with Store(tmp_path / "s.sqlite") as store:
        data = make_step_data(problems_dataset(problems), KnownTruthTeacher(problems), store, min_steps=3)
    assert data.dropped == {}
    assert data.rows["completion"][:] == [chain_of_steps(solve(problem)) for problem in problems]

    run = {**SUPERVISED_RUN, "max_steps": 1, "warmup_steps": 0, "per_device_train_batch_size": 2}
    make = maker(ChainOfStepSFTTrainer, ChainOfStepSFTConfig, **run)
    trainer = make(checkpoints("qwen2_5_vl"), tmp_path / "run", data.rows)
    trainer.train()
    assert trainer.state.global_step == 1
