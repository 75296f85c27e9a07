"""The teacher of known truth, asked as the methods' pipelines ask."""

import json

import pytest
from PIL import Image
from solution_chains import chain_of_steps

from trl_mmreason.chain_of_step.prompts import (
    JUDGE_PROMPT,
    STEP_DATA_PROMPT,
    read_ratings,
    read_steps,
    step_data_message,
    step_data_prompt,
    step_judge_message,
)
from trl_mmreason.chain_of_step.template import Step, parse_chain, render_chain
from trl_mmreason.generation.engine import Failure, Request, SamplingParams
from trl_mmreason.miniature.solutions import ERRORS, solve
from trl_mmreason.miniature.tasks import CATEGORIES, make_problem, make_problems
from trl_mmreason.miniature.teacher import KnownTruthTeacher
from trl_mmreason.srpo.prompts import TEACHER_SYSTEM_PROMPT, read_reflection, teacher_prompt

PROBLEM = make_problem("adding", 4)  # 8+1
TEACHER = KnownTruthTeacher([*make_problems(["adding", "clock"], 4), PROBLEM])


def ask(cot, answer, *, problem=PROBLEM, images=None, **request):
    said = teacher_prompt(problem.prompt[0]["content"], cot, answer, problem.answer, second_thought=True)
    messages = [{"role": "system", "content": TEACHER_SYSTEM_PROMPT}, {"role": "user", "content": said}]
    images = [problem.image] if images is None else images
    (result,) = TEACHER.sample([Request(messages, images, **request)], SamplingParams())
    return result


@pytest.mark.parametrize(
    ("cot", "answer", "reflection"),
    [
        ("8+1=9", "9", "I check it and find the same."),
        ("7+1=8", "8", "Not so. The first digit is 8."),
        ("8+1=10", "10", "Not so. 8+1=9"),
        ("8+1=9", "8", "Not so. So the answer is 9."),
        ("two\nlines", "nothing", "Not so. 8+1=9"),
    ],
)
def test_it_names_the_first_mistake_and_gives_the_right_working(cot, answer, reflection):
    (sample,) = ask(cot, answer)
    assert json.loads(sample.text) == {"reflection": reflection, "think": "8+1=9"}
    assert sample.finish_reason == "stop"


def test_a_question_with_choices_is_known_by_its_whole_text():
    problem = make_problem("adding", 7, multiple_choice=True)
    teacher = KnownTruthTeacher([problem])
    text = "+".join(map(str, problem.facts.values())) + "=" + problem.choices[problem.answer]
    said = teacher_prompt(problem.prompt[0]["content"], text, problem.answer, problem.answer)
    ((sample,),) = teacher.sample([Request([{"role": "user", "content": said}], [problem.image])], SamplingParams())
    assert read_reflection(sample.text) == {"reflection": "I check it and find the same.", "think": text}


def ask_about(problem, prompt, message):
    messages = [{"role": "system", "content": prompt}, {"role": "user", "content": message}]
    (result,) = KnownTruthTeacher([problem]).sample([Request(messages, [problem.image])], SamplingParams())
    return result if isinstance(result, Failure) else result[0].text


@pytest.mark.parametrize("category", CATEGORIES)
@pytest.mark.parametrize("multiple_choice", [False, True])
def test_it_writes_and_judges_chains_of_steps(category, multiple_choice):
    problem = make_problem(category, 1, level=3, multiple_choice=multiple_choice)
    question = problem.prompt[0]["content"]
    for prompt in (STEP_DATA_PROMPT, step_data_prompt(3, 6)):
        reply = ask_about(problem, prompt, step_data_message(question, problem.answer))
        chain = read_steps(reply, min_steps=len(problem.facts) + 2, max_steps=len(problem.facts) + 2)
        assert render_chain(chain) == chain_of_steps(solve(problem))
    for error in (None, *ERRORS):
        solution = solve(problem, error=error)
        steps = parse_chain(chain_of_steps(solution)).steps
        reply = ask_about(problem, JUDGE_PROMPT, step_judge_message(question, problem.answer, steps))
        assert read_ratings(reply, len(steps)) == [1 if step in problem.steps else -1 for step in solution.steps]


def test_whatever_a_policy_writes_into_its_steps_is_judged():
    right = Step(*vars(PROBLEM.steps[0]).values())
    odd = [Step("", "", ""), Step("a\nb > c", "two\n\nlines: <x>", "\n"), right]
    reply = ask_about(PROBLEM, JUDGE_PROMPT, step_judge_message(PROBLEM.prompt[0]["content"], "9", odd))
    assert reply == "### Step Label: [-1,-1,1]"


def test_prompts_of_chain_of_step_in_another_form_are_a_failure():
    failure = Failure("the request does not have the form of Chain-of-Step's prompt for teachers")
    for prompt in (STEP_DATA_PROMPT, JUDGE_PROMPT):
        assert ask_about(PROBLEM, prompt, "Hello.") == failure
    unknown = ask_about(PROBLEM, JUDGE_PROMPT, step_judge_message("What else?", "9", []))
    assert unknown.reason == "the teacher does not know this image with the question 'What else?'"


def test_seed_and_number_change_nothing():
    assert ask("7+1=8", "8", n=3, seed=9) == ask("7+1=8", "8", n=1, seed=1) * 3


def test_what_it_does_not_know_is_a_failure():
    assert "does not know this image" in ask("8+1=9", "9", images=[Image.new("RGB", (56, 56))]).reason
    assert "does not know this image" in ask("8+1=9", "9", images=[]).reason
    (other,) = TEACHER.sample([Request([{"role": "user", "content": "Hello."}], [PROBLEM.image])], SamplingParams())
    assert other == Failure("the request does not have the form of SRPO's prompt for teachers")


def test_settings_tell_what_it_knows():
    assert KnownTruthTeacher([PROBLEM]).settings == KnownTruthTeacher([PROBLEM]).settings
    assert KnownTruthTeacher([PROBLEM]).settings != TEACHER.settings
