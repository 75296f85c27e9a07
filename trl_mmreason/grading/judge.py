"""A language model as judge of answers that the rules call wrong, with SOPHIA's two prompts, over any engine.

The prompts are Figures A5 (extraction) and A6 (equivalence) of "Semi-off-Policy Reinforcement Learning for
Vision-Language Slow-Thinking Reasoning", word for word; the paper asks Qwen2.5-72B-Instruct with greedy decoding.
Differs from paper: the rules go first, so that the judge is asked only about what they call wrong. What a model wrote
might speak to the judge in the prompt's own voice, so only the end of it is shown, without lines that look like fields
of the prompt. That does not make a judge safe against persuasion: what it decided says `decided_by="judge"`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..replies import Failure, ReplyCount
from .extraction import read_gold, without_thinking
from .grader import Grader
from .verdict import Verdict

ChatFunction = Callable[[list[list[dict[str, str]]]], Sequence[str | Failure]]

LONGEST_SHOWN = 4000
"""Characters of a model's text that the judge gets to see: the last ones."""

EXTRACTION_EXAMPLES = """\
Please read the following example. Then extract the answer from the model response and type it at the end of the prompt.

Hint: Please answer the question requiring an integer answer and provide the final value, e.g., 1, 2, 3, at the end.
Question: Which number is missing?
Model response: The number missing in the sequence is 14.
Extracted answer: 14

Hint: Please answer the question requiring a floating-point number with one decimal place and provide the final value, \
e.g., 1.2, 1.3, 1.4, at the end.
Question: What is the fraction of females facing the camera?
Model response: The fraction of females facing the camera is 0.6, which means that six out of ten females in the group \
are facing the camera.
Extracted answer: 0.6

Hint: Please answer the question requiring a Python list as an answer and provide the final list, e.g., [1, 2, 3], \
[1.2, 1.3, 1.4], at the end.
Question: Between which two years does the line graph saw its maximum peak?
Model response: The line graph saw its maximum peak between 2007 and 2008.
Extracted answer: [2007, 2008]
"""

EQUIVALENCE_EXAMPLES = r"""Below are two answers to a math question. Question is [Question], [Standard Answer] is the \
standard answer to the question, and [Model_answer] is the answer extracted from a model's output to this question. \
Determine whether these two answers are consistent.
Please note that only when the [Model_answer] completely matches the [Standard Answer] means they are consistent. For \
non-multiple-choice questions, if the meaning is expressed in the same way, it is also considered consistent, for \
example, 0.5m and 50cm.
If they are consistent, Judgement is 1; if they are different, Judgement is 0.

[Question]: Write the set of numbers represented on the number line in interval notation.
[Standard Answer]: (-2,1]
[Model_answer]: Extracted Answer: ((-2, 1))
Judgement: 0

[Question]: Find the domain and range of the function f using interval notation.
[Standard Answer]: domain: [-4, 0) and range: (-3, 1]
[Model_answer] : Range: ((-4, 1])
Judgement: 0

[Question]: Given the graph of the ellipse that intersects with x-axis at 9 and -9 and with y-axis at 3 and -3, \
determine its equation. A. $\frac{x^2}{81} + \frac{y^2}{9} = 1$ B. Can not determine.
[Standard Answer]: A
[Model_answer] : $\frac{x^2}{81} + \frac{y^2}{9} = 1$
Judgement: 1
""".replace("\\\n", "")

_FIELD = re.compile(
    r"judge?ments?\W{0,6}[:：=]|judge?ment\W{0,6}is\b|\[\s?(?:question|standard[ _]answer|model[ _]answer)\s?\]"
    r"|^\W{0,6}(?:hint|question|model response|extracted answer|standard[ _]answer|model[ _]answer)\W{0,6}[:：]",
    re.I,
)
_EXTRACTED = re.compile(r"\W{0,6}extracted answer\W{0,6}[:：][\s*_]{0,4}", re.I)
_NUMBER = r"-?\d+(?:[./]\d+)*"
_LABELLED = re.compile(rf"judge?ment[\s:：=*_`\"'\]]{{0,8}}(?:is\b[\s:：*_`\"']{{0,8}})?({_NUMBER})(.*)", re.I)
_ALONE = re.compile(r"[\s*_`\"'.()\[\]]*([01])[\s*_`\"'.()\[\]]*")


class JudgeGrader:
    """Grader that applies the rules first, then asks a language model about answers that they call wrong.

    What the rules find right stays right, and an unusable gold stays unusable. Without a reply that can be read there
    is no verdict, `decided_by="unreadable"`. Errors of the engine are raised.

    Args:
        chat: takes conversations, each a list of messages with "role" and "content", and returns one reply for each,
            or the `Failure` of one that has none. All that is asked at one stage comes in one call, so that an engine
            can batch: at most two calls per batch. If it has `settings`, as engines have, a store notices when they
            change.
        grader: the rules; by default `Grader()`.
        extract: whether the judge also looks for an answer where the rules found none.
        compare: whether it also says if an answer equals the gold one. Without, the rules decide about the answers that
            it found, as the paper does on five of its eight benchmarks (appendix C).
    """

    def __init__(
        self, chat: ChatFunction, grader: Grader | None = None, *, extract: bool = True, compare: bool = True
    ) -> None:
        if not extract and not compare:
            raise ValueError("JudgeGrader: extract=False came with compare=False, which leaves nothing to ask.")
        self.chat = chat
        self.grader = grader or Grader()
        self.extract = extract
        self.compare = compare
        effect = "Such answers get no verdict and train nothing; grading/unreadable counts them."
        self._extractions = ReplyCount("The judge", "the answer that it finds, in one line", effect)
        self._judgements = ReplyCount("The judge", '"Judgement: 1" or "Judgement: 0"', effect)

    def __repr__(self) -> str:
        chat, alone = getattr(self.chat, "settings", self.chat), "" if self.compare else ", compare=False"
        return f"{type(self).__name__}(chat={chat!r}, grader={self.grader!r}, extract={self.extract!r}{alone})"

    @property
    def works_elsewhere(self) -> bool:
        """Whether answers may be judged while others are sampled, which depends on `chat` and the rules."""
        return all(getattr(party, "works_elsewhere", False) for party in (self.chat, self.grader))

    def grade(self, completion: str, gold: Any, **others: Any) -> Verdict:
        """Grade one completion; arguments as of `Grader.grade`."""
        return self.grade_batch([{"completion": completion, "gold": gold, **others}])[0]

    def grade_batch(self, items: Iterable[Mapping[str, Any]]) -> list[Verdict]:
        """Grade many items, each the arguments of `grade` by name."""
        items = list(items)
        verdicts = self.grader.grade_batch(items)
        # An answer refused for its size is nothing to spend a judge's time on.
        wrong = [i for i, verdict in enumerate(verdicts) if verdict.correct is False and verdict.decided_by != "size"]
        answers = {i: _one_line(answer) for i in wrong if (answer := verdicts[i].extracted) is not None}
        extracted = self._extract(items, verdicts, [i for i in wrong if i not in answers]) if self.extract else {}
        if not self.compare:
            # The rules decide about what the judge extracted.
            boxed = [{**items[i], "completion": rf"\boxed{{{answer}}}"} for i, answer in extracted.items()]
            for (i, answer), verdict in zip(extracted.items(), self.grader.grade_batch(boxed), strict=True):
                reason = f"of the answer that the judge extracted: {verdict.reason}"
                verdicts[i] = Verdict(verdict.correct, answer, reason, "judge")
            return verdicts
        answers = {i: answer for i, answer in (answers | extracted).items() if answer}
        golds = {i: _gold(items[i]) for i in answers}
        prompts = {i: equivalence_prompt(_question(items[i]), golds[i], answer) for i, answer in answers.items()}
        for i, reply in self._ask(prompts, self._judgements).items():
            consistent = None if isinstance(reply, Failure) else read_judgement(reply)
            self._judgements.note(reply, readable=consistent is not None)
            if consistent is None:
                verdicts[i] = _unreadable(verdicts[i], reply)
                continue
            reason = f"the judge finds it {'equal to' if consistent else 'different from'} the gold answer"
            verdicts[i] = Verdict(consistent, answers[i], f"{reason} {golds[i][:80]!r}", "judge")
        return verdicts

    def _extract(
        self, items: Sequence[Mapping[str, Any]], verdicts: list[Verdict], places: Sequence[int]
    ) -> dict[int, str]:
        """Ask for the answers of some items, and return those found; without a reply there is no verdict."""
        answers, prompts = {}, {}
        for i in places:
            if shown := shown_to_judge(items[i]["completion"]):
                prompts[i] = extraction_prompt(_question(items[i]), shown, items[i].get("hint") or "")
        for i, reply in self._ask(prompts, self._extractions).items():
            answer = _extraction(reply)
            self._extractions.note(reply, readable=answer is not None)
            if answer is None:
                verdicts[i] = _unreadable(verdicts[i], reply)
            elif answer:
                answers[i] = answer
            else:
                verdicts[i] = verdicts[i]._replace(decided_by="judge")  # which finds none either
        return answers

    def _ask(self, prompts: Mapping[int, str], count: ReplyCount) -> dict[int, str | Failure]:
        """Ask all questions in one call."""
        if not prompts:
            return {}
        replies = self.chat([[{"role": "user", "content": prompt}] for prompt in prompts.values()])
        if len(replies) != len(prompts):
            raise ValueError(
                f"JudgeGrader: chat returned {len(replies)} replies to {len(prompts)} conversations, expected one each."
            )
        count.note_call(replies)
        return dict(zip(prompts, replies, strict=True))


def extraction_prompt(question: str, response: str, hint: str = "") -> str:
    """Write the prompt of Figure A5 for one response; without a hint of the benchmark the field is empty."""
    hint_line = f"Hint: {hint}".strip()
    return f"{EXTRACTION_EXAMPLES}\n{hint_line}\nQuestion: {question}\nModel response: {response}\nExtracted answer:"


def equivalence_prompt(question: str, gold: str, answer: str) -> str:
    """Write the prompt of Figure A6 for one answer."""
    return (
        f"{EQUIVALENCE_EXAMPLES}\n[Question]: {question}\n[Standard Answer]: {gold}\n[Model_answer] : {answer}\n"
        "Judgement:"
    )


def shown_to_judge(text: str) -> str:
    """The end of a model's text, without thinking and without lines that imitate the prompts' fields."""
    spoken = without_thinking(text) or ""
    lines = spoken[-LONGEST_SHOWN:].splitlines()
    return "\n".join(line for line in lines if not _FIELD.search(_plain(line))).strip()


def read_judgement(reply: str) -> bool | None:
    """Parse the decision in a judge's reply, "Judgement: 1" or a lone 0 or 1; `None` unless there is exactly one."""
    spoken = without_thinking(reply) or ""
    decisions = {alone[1]} if (alone := _ALONE.fullmatch(spoken)) else set()
    for label in _LABELLED.finditer(spoken):
        decisions |= {label[1], *({"0", "1"} & set(re.findall(_NUMBER, label[2])))}
    return {frozenset("1"): True, frozenset("0"): False}.get(frozenset(decisions))


def _unreadable(first: Verdict, reply: str | Failure) -> Verdict:
    if isinstance(reply, Failure):
        reason = f"{first.reason}; the judge did not reply: {reply.reason}"
    else:
        reason = f"{first.reason}; the judge's reply could not be read: {reply[:40]!r}"
    return first._replace(correct=None, reason=reason, decided_by="unreadable")


def _extraction(reply: str | Failure) -> str | None:
    """The extracted answer: the reply's first line without a repeated field name; `None` without a reply."""
    spoken = "" if isinstance(reply, Failure) else (without_thinking(reply) or "").strip()
    if not spoken:
        return None
    label = _EXTRACTED.match(spoken)
    lines = spoken[label.end() if label else 0 :].splitlines()
    return _one_line(lines[0]) if lines else ""


def _one_line(answer: str) -> str:
    return " ".join(shown_to_judge(answer).split())


def _plain(line: str) -> str:
    """Normalise full-width letters and remove invisible characters, which could hide a field's name."""
    return "".join(c for c in unicodedata.normalize("NFKC", line) if unicodedata.category(c) != "Cf")


def _question(item: Mapping[str, Any]) -> str:
    """The question followed by its choices, as in the paper's example; a leading hint has its own field."""
    question = (item.get("question") or "").removeprefix(item.get("hint") or "").strip()
    choices = [f"{label}. {text}" for label, text in (item.get("choices") or {}).items() if text is not None]
    return " ".join([question, *choices]).strip()


def _gold(item: Mapping[str, Any]) -> str:
    gold = item["gold"]
    golds = gold if isinstance(gold, list | tuple | set) else [gold]
    return " or ".join(read_gold(str(one)) for one in golds)
