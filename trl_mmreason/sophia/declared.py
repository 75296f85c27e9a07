"""SOPHIA's entries for shared rooms."""

from ..methods import Method
from .prompts import THINKING_PROMPT

METHOD = Method(system_prompts={"sophia": THINKING_PROMPT})
