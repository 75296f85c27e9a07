"""Is this answer right?"""

from .extraction import extract_answer
from .grader import Grader, equivalent
from .reward import accuracy_reward
from .verdict import Verdict

__all__ = ["Grader", "Verdict", "accuracy_reward", "equivalent", "extract_answer"]
