"""Find the answer of a text that declares none, as benchmarks with an extraction step do. Never for rewards.

MathVista and MathVerse have a language model extract the answer before it is compared. These rules do that without one:
the value that the last sentence with a value states.
"""

from __future__ import annotations

import re

from .declarations import without_dressing
from .extraction import extract_answer, without_thinking
from .units import UNITS
from .words import NUMBER_WORDS

_MOST_SENTENCES = 8
_LONGEST_SENTENCE = 600
_LONGEST_ANSWER = 5  # words; a bare line may be a sentence
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+|(?<=[。！？])")
_WORDS = "|".join(word for word in sorted(NUMBER_WORDS, key=len, reverse=True) if word.isascii())
_NUMBER = r"[-+]?[$€£¥]?\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+|:\d+)?(?:\s?[%°])?"
_UNIT_NAME = (
    rf"(?!in\b)(?:{'|'.join(map(re.escape, sorted(UNITS, key=len, reverse=True)))})(?![^\W\d_²³])(?:\s?\^?[23²³])?"
)
# What belongs to the number before it: `5 million dollars`, `36 square meters`, `m/s²`, `AM`, ‰
_UNIT = (
    r"(?:\s?(?:hundred|thousand|million|billion|trillion|dozen)\b)?"
    r"(?:\s?[apAP]\.?[mM]\b|\s?(?:‰|[%％]|per\s?mille?\b|per\s?cent\b|°\s?[CF]\b)"
    rf"|\s?(?:(?:square|cubic|sq\.?|cu\.?)\s)?{_UNIT_NAME}(?:\s?(?:/|[·*-]|\bper\b|\s)\s?{_UNIT_NAME})?(?:\s(?:squared|cubed)\b)?)?"
)
_VALUE = re.compile(
    rf"(?:\$[^$]{{1,80}}\$|\\\([^()]{{1,80}}\\\)|[\[(][^\[\]()]{{1,60}}[\])]"
    rf"|(?<![\w.]){_NUMBER}(?![\w])|\b(?i:{_WORDS})\b){_UNIT}"
)
_STATES = re.compile(
    r"\b(?:is|are|was|were|be|equals?|gives?|makes?|leaves?|becomes?|yields?|totals?|measures?|get|obtain|have|has|about"
    r"|approximately|namely|means|reaches|results?\s+in|to|of|as)\b\s?|(?:[=≈是为]|[:：](?!\d))\s?",
    re.I,
)
_REASON = re.compile(
    r",?\s(?:because|since|as\s+(?:we|it|there|the)|which(?=.*\b(?:twice|half|times|than|more|less|fewer)\b))\b.*",
    re.DOTALL,
)
_ASIDE = re.compile(r",?\swhich\b.*", re.DOTALL)
# What may follow the last verb of a sentence, up to its end: `π/6`, `4a + 6b`, `2.0 × 10^3 J`, `5 and 1`, `one half`
_ENDING = re.compile(
    rf"((?=.*[\dπ])(?:[^\w,;:=?!]|[\dα-ω]|(?<![A-Za-z])(?!a\s\w)[A-Za-z](?![A-Za-z])|\band\b)+?{_UNIT}"
    r"|(?i:one|two|three|four|five)[ -](?:half|halves|thirds?|quarters?|fifths?))[.。]?"
)
_BETWEEN = re.compile(rf"\b(?:between|from)\s+({_NUMBER})\s+(?:and|to)\s+({_NUMBER})")
_NO_VALUE = re.compile(
    r"\b(?:not(?:\s(?:in|at|on|equal\sto))?|(?:more|less|fewer|greater|smaller|larger|higher|lower)\s+than|at\s+(?:least|most)|either"
    r"|over|under|below|above|either\s+\S+\s+or|\d\s+or)\s+\Z",
    re.I,
)
_COMPARED = re.compile(
    r"\s+(?:more|less|fewer|greater|smaller|larger|higher|lower)\b[^.]*\bthan\b|\s+or\s+[$\d-]", re.I
)
_CHOICE = re.compile(r"\b(?:option|choice|answer|letter)\s+(?:is\s+)?\(?([A-J])\)?(?![\w'])|(?<!\w)\(([A-J])\)(?!\w)")


def prose_answer(text: str) -> str | None:
    """The declared answer of a text, else the one that its last sentence with a value states.

    That is a choice that is named, the ends of "between 2007 and 2008" as a list, or the first value after the last
    verb that states one.

    Examples:
        >>> prose_answer("The number missing in the sequence is 14.")
        '14'
        >>> prose_answer("The line graph saw its peak between 2007 and 2008.")
        '[2007, 2008]'
        >>> prose_answer("I cannot see the image.") is None
        True
    """
    declared, spoken = extract_answer(text), without_thinking(text) or ""
    is_a_sentence = declared is not None and len(declared.split()) > 2 and declared == without_dressing(spoken)
    if declared is not None and not is_a_sentence and len(declared.split()) <= _LONGEST_ANSWER:
        return declared
    sentences = [sentence for sentence in _SENTENCE.split(spoken) if sentence.strip()]
    for sentence in reversed(sentences[-_MOST_SENTENCES:]):
        if (found := _stated(sentence[-_LONGEST_SENTENCE:])) is not None:
            return found
    return declared


def _is_bound(sentence: str, value: re.Match[str]) -> bool:
    """Whether it is no value: not 8, more than 8, 8 more than, either 8 or 9."""
    return bool(_NO_VALUE.search(sentence, 0, value.start()) or _COMPARED.match(sentence, value.end()))


def _stated(sentence: str) -> str | None:
    sentence = _REASON.sub("", sentence)
    if choices := list(_CHOICE.finditer(sentence)):
        return choices[-1][1] or choices[-1][2]
    if between := _BETWEEN.search(sentence):
        return f"[{between[1]}, {between[2]}]"
    last = [*_STATES.finditer(sentence)][-1:]
    if last and (ending := _ENDING.fullmatch(sentence, last[0].end())) and not _is_bound(sentence, ending):
        return without_dressing(ending[1])
    sentence = _ASIDE.sub("", sentence)
    values = [value for value in _VALUE.finditer(sentence) if not _is_bound(sentence, value)]
    for verb in reversed(list(_STATES.finditer(sentence))):
        after = next((value for value in values if value.start() >= verb.end()), None)
        if after and len(sentence[verb.end() : after.start()].split()) <= 2:
            return without_dressing(after.group())
    return without_dressing(values[-1].group()) if values else None
