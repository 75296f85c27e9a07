"""Compare dates and times of day in whatever notation they are written."""

from __future__ import annotations

import math
import re

from .words import MONTH_NAMES, NUMBER_WORDS

MONTHS = {form: number for number, name in enumerate(MONTH_NAMES, 1) for form in (name, name[:3])} | {"sept": 9}
_BESIDE = re.compile(r"(?:(?<=\d)(?:st|nd|rd|th))?,?\s+(?:of\s+)?|\.\s|[a-z]{3,6}day,?\s|^(?:on|the)\s")
_DATE = re.compile(r"(\d{4})[-/.年](\d{1,2})[-/.月](\d{1,2})日?")
_DAY = re.compile(r"\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b", re.I)
_DAY_FIRST = re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})")  # or the month
_PLAIN_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}")
_PARTS = {"half": "30", "半": "30", "一刻": "15", "quarter": "15"}
_PAST = re.compile(
    r"(?:a )?(half|quarter|five|ten|twenty|twenty-five|[1-5]?\d(?= minutes))(?: minutes)? (past|to) ([a-z]+|1?\d)"
)
_CLOCK = re.compile(
    r"(上午|早上|凌晨)?(下午|晚上|傍晚)?\s*(\d{1,2})(?::(\d{2}))?(?::(\d{2}))?\s*(?:([ap]|[AP](?=.*M))\.?\s?[mM]\.?)?"
)


def compare_moments(answer: str, gold: str) -> bool | None:
    """Compare times of day, 15:30 and 3:30 PM, and dates such as 2021-03-05; `None` for anything else."""
    if (other := _clock(gold)) and (one := _clock(answer)):
        ratio = math.gcd(*other[0]) == 1 and other[0][1] > 9 and not one[0][2]
        if ratio and one[0][0] > 12 and one[0] != other[0] and not one[2] + other[2]:
            return None  # 18:32 may be the ratio 9:16
        return one[1] == other[1] or (one[0] == other[0] and "" in (one[2], other[2]))
    if (date := _date(gold)) and (other_date := _date(answer)):
        days = {day[:3].lower() for text in (answer, gold) for day in _DAY.findall(text)}
        return date == other_date and len(days) < 2
    if _PLAIN_DATE.fullmatch(gold):
        return re.findall(r"[1-9]\d*", answer) == re.findall(r"[1-9]\d*", gold) and "-" not in answer[:1]
    return None


def _date(text: str) -> tuple[int, list[int]] | None:
    """The month of a date, and its other numbers."""
    if match := _DATE.fullmatch(text):
        year, month, day = map(int, match.groups())
        return month, [day, year]
    if match := _DAY_FIRST.fullmatch(text):
        month, day = sorted(map(int, match.group(1, 2)))
        return (month, [day, int(match[3])]) if month <= 12 < day else None
    words = _BESIDE.sub(" ", text.lower() + " ").split()
    months = [MONTHS[word] for word in words if word in MONTHS]
    numbers = sorted(int(word) for word in words if word.isdigit())
    return (months[0], numbers) if len(months) == 1 and len(words) == 1 + len(numbers) < 4 else None


def _clock(text: str) -> tuple[list[int], list[int], str] | None:
    """Hour, minute and second as written, the same on 24 hours, and `a`, `p` or nothing for the half of the day."""
    if (past := _PAST.fullmatch(text.lower())) and (spoken := NUMBER_WORDS.get(past[3], past[3])).isdecimal():
        minutes = int(_PARTS.get(past[1]) or NUMBER_WORDS.get(past[1], past[1]))
        text = f"{spoken}:{minutes:02}" if past[2] == "past" else f"{(int(spoken) - 2) % 12 + 1}:{60 - minutes}"
    if re.search("点|(?<!小)时", text):
        text = re.sub("[一二两三四五六七八九十]+(?=[点时分])", lambda match: NUMBER_WORDS.get(match[0], match[0]), text)
        text = re.sub(
            r"[点时](?:(\d{1,2})分?|(半|一刻)|整)?$", lambda m: f":{m[1] or _PARTS.get(m[2], '00'):0>2}", text
        )
    text = re.sub(r"^12(?::00)? (?=noon|midnight)", "", text.lower()) if "n" in text else text
    text = {"noon": "12 pm", "midnight": "12 am"}.get(text.lower(), text.replace(" o'clock", ":00"))
    match = _CLOCK.fullmatch(text)
    if match is None or not (match[4] or match[6]):
        return None
    half = "a" if match[1] else "p" if match[2] else (match[6] or "").lower()
    hour, *rest = (int(part or 0) for part in match.groups()[2:5])
    return [hour, *rest], [hour % 12 + 12 * (half == "p") if half and hour <= 12 else hour, *rest], half
