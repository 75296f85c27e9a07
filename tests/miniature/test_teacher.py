"""The teacher of known truth, asked as SRPO's pipeline asks."""

import json

import pytest
from PIL import Image

from trl_mmreason.miniature.tasks import make_problem, make_problems
from trl_mmreason.miniature.teacher import KnownTruthTeacher
from trl_mmreason.sampling.engine import Decoding, Failure, Request
from trl_mmreason.srpo.prompts import TEACHER_SYSTEM_PROMPT, read_reflection, teacher_prompt

PROBLEM = make_problem("adding", 4)  # 8+1
TEACHER = KnownTruthTeacher([*make_problems(["adding", "clock"], 4), PROBLEM])


def ask(cot, answer, *, problem=PROBLEM, images=None, **request):
    said = teacher_prompt(problem.prompt[0]["content"], cot, answer, problem.answer, second_thought=True)
    messages = [{"role": "system", "content": TEACHER_SYSTEM_PROMPT}, {"role": "user", "content": said}]
    pictures = [problem.image] if images is None else images
    (result,) = TEACHER.sample([Request(messages, pictures, **request)], Decoding())
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
    ((sample,),) = teacher.sample([Request([{"role": "user", "content": said}], [problem.image])], Decoding())
    assert read_reflection(sample.text) == {"reflection": "I check it and find the same.", "think": text}


def test_seed_and_number_change_nothing():
    assert ask("7+1=8", "8", n=3, seed=9) == ask("7+1=8", "8", n=1, seed=1) * 3


def test_what_it_does_not_know_is_a_failure():
    assert "does not know this picture" in ask("8+1=9", "9", images=[Image.new("RGB", (56, 56))]).reason
    assert "does not know this picture" in ask("8+1=9", "9", images=[]).reason
    (other,) = TEACHER.sample([Request([{"role": "user", "content": "Hello."}], [PROBLEM.image])], Decoding())
    assert other == Failure("the request does not have the form of SRPO's prompt for teachers")


def test_settings_tell_what_it_knows():
    assert KnownTruthTeacher([PROBLEM]).settings == KnownTruthTeacher([PROBLEM]).settings
    assert KnownTruthTeacher([PROBLEM]).settings != TEACHER.settings
