"""Prompts for Chain-of-Step's teacher and judge, and parsers of their replies (arXiv:2509.19003, appendix B).

The two prompts stand here word for word; the paper's typography is left out, and the fences that the figure has around
the parts of its format. Question and reference answer go with them in a message of their own, as do the images.
"""

from __future__ import annotations

import re

from ..jobs.asking import MalformedReply, without_fence
from ..messages import quoted
from .template import Chain, Step, has_token

STEP_DATA_PROMPT = """\
You are a thought assistant, i will provide you with an image, a question, and a reference answer. Your responsibility is to develop a sequence of intermediate thinking steps that would logically connect the question to its answer.

Each step must consist of and only consist of the following three parts:
1. Step Name: A brief title summarizing the main idea of the step.
2. Detailed Thinking: An in-depth description of the thought process in this step, explaining what is being observed, inferred, or analyzed. Note that the process of thinking and reasoning should be presented in as much detail as possible.
3. Reflection: A reflection on this step's connection to prior steps, pointing out any potential errors, and if possible, citing evidence in the image that supports or informs this step.

There are some guidelines you should follow:
1. Make sure the steps are clear, sequential, and detailed enough to make each step flows logically into the next.
2. The number of steps must be no less than 5 and no more than 10.
3. Do not state an answer at the beginning. Explain the visual clues that help to derive the answer.
4. Don't state that the reference answer is correct or consistent to your finding. You are writing your own solution.
5. The explanation can help you derive the thinking process.
6. For math problems, you must give specific operation steps and concrete intermediate solution leading to the final answer.
7. Make sure to incorporate concrete observations from the provided materials.

The output format must be strictly organized as follows:
### <Step 1: xxx>
<Detailed Thinking>: xxx
<Reflection>: xxx

### <Step 2: xxx>
<Detailed Thinking>: xxx
<Reflection>: xxx

...

### <Step x: xxx>
<Detailed Thinking>: xxx
<Reflection>: xxx

...

### <Answer>
xxx"""  # noqa: E501 - the paper's own lines
"""Fig. 8: the teacher writes the steps that lead to a known answer. Some datasets have the "explanation"."""

JUDGE_PROMPT = """\
You are a judging assistant specializing in evaluating process reward, the following is an image, a question, a reference answer and a step-by-step intermediate answer process for the question. The reference answer is correct while the intermediate answer steps are not necessarily correct.

Your task is to review and critique each step of the intermediate answer process based on its correctness. Assign one of the following ratings to each step:
- Good: The step is logical, directly relevant to the question, and most importantly, correct. This step provides substantive progress to solve the question.
- Neutral: The step is somewhat relevant but contains minor flaws or gaps in reasoning. Or this step only includes some abstract practices rather than concrete solutions, which is not helpful for solving the question in effect.
- Bad: The step is flawed, wrong, or shows a misunderstanding of the question or context. This step has a negative effect on solving the question.

For each step, provide a brief explanation of your evaluation, identifying areas for improvement if Neutral or Bad. Finally, return your output in the form of a step label list. 1 stands for Good; 0 stands for Neutral; -1 stands for Bad.

The final step label list format must be strictly organized as follows:
### Step Label: [1,1,0,-1,-1,-1]"""  # noqa: E501 - the paper's own lines
"""Fig. 9: the judge rates every step of a chain."""

MIN_TAUGHT_STEPS, MAX_TAUGHT_STEPS = 5, 10
"""Steps of a chain that Fig. 8 asks the teacher for."""

_THINKING, _REFLECTION = "<Detailed Thinking>:", "<Reflection>:"
_HEADING = re.compile(r"### <(?:Step (\d+): (.+)|Answer)>")
_LABELS = re.compile(r"### Step Label: *\[([^\[\]\n]*)\]")


def step_data_prompt(min_steps: int = MIN_TAUGHT_STEPS, max_steps: int = MAX_TAUGHT_STEPS) -> str:
    """`STEP_DATA_PROMPT`, word for word unless it asks for other numbers of steps than the paper's."""
    bounds = "no less than {} and no more than {}."
    return STEP_DATA_PROMPT.replace(
        bounds.format(MIN_TAUGHT_STEPS, MAX_TAUGHT_STEPS), bounds.format(min_steps, max_steps)
    )


def step_data_message(question: str, answer: str) -> str:
    """Write the user message that goes with `STEP_DATA_PROMPT`; the paper does not show this part."""
    return f"Question: {question}\nReference answer: {answer}"


def step_judge_message(question: str, answer: str, steps: list[Step]) -> str:
    """Write the user message that goes with `JUDGE_PROMPT`; the paper does not show this part.

    A chain's own answer is left out: the list has one rating a step, and the answer's label is whether it is right.
    """
    process = quoted(steps_as_text(steps))
    return f"Question: {question}\nReference answer: {answer}\nIntermediate answer process:\n{process}"


def steps_as_text(steps: list[Step]) -> str:
    """Write the steps in the text format of Fig. 8, without the answer."""
    return "\n\n".join(
        f"### <Step {number}: {step.name}>\n{_THINKING} {step.thought}\n{_REFLECTION} {step.reflection}"
        for number, step in enumerate(steps, start=1)
    )


def read_steps(reply: str, *, min_steps: int = MIN_TAUGHT_STEPS, max_steps: int = MAX_TAUGHT_STEPS) -> Chain:
    """Parse a teacher's reply in the format of Fig. 8, with or without a code fence, into a chain.

    The parts of a step are taken without the white space around them; none may be empty.

    Raises:
        MalformedReply: the reply is anything else, or has too few or too many steps, or a special token in it.
    """
    if has_token(reply):
        raise MalformedReply("a special token in the text")
    *sections, (last_title, answer) = _sections(without_fence(reply))
    if last_title:
        raise MalformedReply("no answer")
    if not all(title for title, _ in sections):
        raise MalformedReply("something after the answer")
    if not answer:
        raise MalformedReply("the answer is empty")
    if not min_steps <= len(sections) <= max_steps:
        raise MalformedReply("too few steps" if len(sections) < min_steps else "too many steps")
    return Chain([_read_step(title, body) for title, body in sections], answer)


def read_ratings(reply: str, steps: int) -> list[int]:
    """Parse the ratings in a judge's reply, one per step: 1 Good, 0 Neutral, −1 Bad; the last list counts.

    Raises:
        MalformedReply: there is no list, its length is another, or a label is none of these.
    """
    lists = _LABELS.findall(reply)
    if not lists:
        raise MalformedReply("no step label list")
    labels = [label.strip() for label in lists[-1].split(",")]
    if not set(labels) <= {"1", "0", "-1"}:
        raise MalformedReply("a label is not 1, 0 or -1")
    if len(labels) != steps:
        raise MalformedReply("another number of labels than of steps")
    return [int(label) for label in labels]


def _sections(text: str) -> list[tuple[str, str]]:
    """Split a reply at its headings: (name of the step, text below it), with "" for the answer."""
    sections: list[tuple[str, list[str]]] = []
    for line in text.split("\n"):
        heading = _HEADING.fullmatch(line.strip())
        if heading is None and not sections:
            raise MalformedReply("text before the first step")
        if heading is None:
            sections[-1][1].append(line)
        elif heading[1] is None:
            sections.append(("", []))
        elif heading[1] != str(len(sections) + 1):
            raise MalformedReply("steps not numbered in order")
        else:
            sections.append((heading[2], []))
    return [(title, "\n".join(lines).strip()) for title, lines in sections]


def _read_step(title: str, body: str) -> Step:
    if not body.startswith(_THINKING) or f"\n{_REFLECTION}" not in body:
        raise MalformedReply("a step without its two parts")
    thought, _, reflection = body.removeprefix(_THINKING).partition(f"\n{_REFLECTION}")
    if f"\n{_THINKING}" in body or f"\n{_REFLECTION}" in reflection:
        raise MalformedReply("a step with a part twice")
    step = Step(title.strip(), thought.strip(), reflection.strip())
    if not (step.name and step.thought and step.reflection):
        raise MalformedReply("a step with an empty part")
    return step
