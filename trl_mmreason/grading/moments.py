"""Compare dates and times of day in whatever notation they are written."""

from __future__ import annotations

import re
from typing import Any

from .words import NUMBER_WORDS

_NAMES = "january february march april may june july august september october november december".split()
MONTHS = {form: n for n, name in enumerate(_NAMES, 1) for form in (name, name[:3], str(n), f"{n:02}")} | {"sept": 9}
_MONTH, _DAY, _YEAR = r"(?P<month>[a-z]{3,9})\.?", r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?:,? (?P<year>\d{4}))?"
_DATES = [
    re.compile(rf"(?:[a-z]+day,? )?(?:on )?(?:the )?{pattern}", re.I)
    for pattern in (
        rf"{_MONTH} {_DAY}{_YEAR}",
        rf"{_DAY}(?: of)? {_MONTH}{_YEAR}",
        rf"(?P<day>){_MONTH}{_YEAR}",
        rf"(?P<year>\d{{4}})[-/.年](?P<month>\d{{1,2}})[-/.月]{_DAY}日?",
    )
]
_PLAIN_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")  # of which nobody knows which part is the month
_CLOCK = re.compile(
    r"(上午|早上|凌晨)?(下午|晚上|傍晚)?\s*(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(?:([ap]|[AP](?=.*M))\.?\s?[mM]\.?)?"
)


def compare_moments(answer: str, gold: str) -> bool | None:
    """Compare two dates or two times of day; `None` for anything else.

    15:30 is 3:30 PM; where one says neither AM nor PM, it may be either.
    """
    if (other := _clock(gold)) and (one := _clock(answer)):
        return one[1] == other[1] or (one[0] == other[0] and "" in (one[2], other[2]))
    if date := _date(gold):
        other_date = _date(answer)
        return other_date == date if other_date or _PLAIN_DATE.fullmatch(gold) else None
    return None


def _date(text: str) -> tuple[Any, ...] | None:
    """Year, month and day; of a date whose parts may be either, all numbers."""
    match = next((match for form in _DATES if (match := form.fullmatch(text))), None)
    if month := match and MONTHS.get(match["month"].lower()):
        return match["year"], month, int(match["day"] or 0)
    return tuple(map(int, re.findall(r"\d+", text))) if _PLAIN_DATE.fullmatch(text) else None


def _clock(text: str) -> tuple[list[int], list[int], str] | None:
    """Hour, minute and second as written, the same on 24 hours, and `a`, `p` or nothing for the half of the day."""
    if "点" in text:
        text = re.sub("[一二两三四五六七八九十]+(?=[点分])", lambda match: NUMBER_WORDS.get(match[0], match[0]), text)
        text = re.sub(r"点(?:(\d{1,2})分?|半|整)?$", lambda m: f":{m[1] or ('30' if '半' in m[0] else '00'):0>2}", text)
    text = {"noon": "12 pm", "midnight": "12 am"}.get(text.lower(), text.replace(" o'clock", ":00"))
    match = _CLOCK.fullmatch(text)
    if match is None or not (match[4] or match[6]):
        return None
    half = "a" if match[1] else "p" if match[2] else (match[6] or "").lower()
    hour, *rest = (int(part or 0) for part in match.groups()[2:5])
    return [hour, *rest], [hour % 12 + 12 * (half == "p") if half and hour <= 12 else hour, *rest], half
