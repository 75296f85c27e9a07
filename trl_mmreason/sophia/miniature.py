"""What a miniature policy is taught before SOPHIA."""

from ..miniature.captions import DESCRIBE
from ..miniature.cold_start import Lessons
from ..miniature.solutions import plain

CAPTIONS_AND_ANSWERS = Lessons(plain, answer_tokens=16, in_steps=True, describe=DESCRIBE, answers_every=4)
r"""To describe a picture ("The first digit is 3. The second digit is 4.") and to answer `3+4=\boxed{7}`.

Captions are mostly right by the time that half the answers are."""
