"""Is this answer right?"""

from .grader import Grader, Verdict, extract_answer

__all__ = ["Grader", "Verdict", "extract_answer"]
