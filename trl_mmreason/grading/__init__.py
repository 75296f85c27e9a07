"""Grading: decide whether an answer is right."""

from .extraction import extract_answer
from .grader import Grader, equivalent, grader_or_rules
from .judge import JudgeGrader
from .reward import accuracy_reward, get_accuracy_reward
from .verdict import Verdict

__all__ = [
    "Grader",
    "JudgeGrader",
    "Verdict",
    "accuracy_reward",
    "equivalent",
    "extract_answer",
    "get_accuracy_reward",
    "grader_or_rules",
]
