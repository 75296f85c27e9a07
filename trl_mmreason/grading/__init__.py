"""Is this answer right?"""

from .grader import Grader, Verdict, extract_answer
from .reward import accuracy_reward

__all__ = ["Grader", "Verdict", "accuracy_reward", "extract_answer"]
