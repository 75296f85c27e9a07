"""Answers in words: whether they are words, and the same ones; numbers and ordinals as words."""

from __future__ import annotations

import re
import unicodedata

from .notation import MARKS

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
NUMBER_WORDS = {
    **{word: str(value) for value, word in enumerate(_ONES)},
    **{
        f"{word}-{_ONES[one]}" if one else word: str(10 * ten + one)
        for ten, word in enumerate(_TENS, start=2)
        for one in range(10)
    },
    **{character: str(value) for value, character in enumerate("零一二三四五六七八九十")},
    "两": "2",
    **{
        f"{tens}十{ones}": str(10 * ten + one)
        for ten, tens in enumerate(["", *"二三四五六七八九"], start=1)
        for one, ones in enumerate(["", *"一二三四五六七八九"])
    },
}


_NAMED = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
ORDINALS = dict(zip(_NAMED, ["1st", "2nd", "3rd", *(f"{number}th" for number in range(4, 13))], strict=True))
ORDINALS |= {f"{word}th": f"{number}th" for number, word in enumerate(_ONES[13:], 13)} | {"twentieth": "20th"}
FRACTIONS = {"half": 2, "halves": 2, "quarter": 4, "hundredth": 100, "thousandth": 1000, "millionth": 10**6}
FRACTIONS |= {name: int(number[:-2]) for name, number in ORDINALS.items() if number not in ("1st", "2nd")}
_ORDINAL = re.compile(rf"\b(?:{'|'.join(ORDINALS)})\b")
MONTH_NAMES = "january february march april may june july august september october november december".split()
# Another word for the same
_SAME = {name[:3]: name for name in (*MONTH_NAMES, "monday", "tuesday", "wednesday", "thursday", "friday")}
_SAME |= dict(
    pair.split("=")
    for pair in "gray=grey anticlockwise=counterclockwise colour=color centre=center max=maximum min=minimum "
    "nw=northwest ne=northeast sw=southwest se=southeast".split()
)
_COUNTRY = re.compile(r"\b(?:united (?:states(?: of america)?|(kingdom))|usa)\b")
# What a word may end in without meaning anything else: increasing, 左边
_ENDING = re.compile(
    r"\b(?:(increas|decreas)(?:es?|ed|ing)|([a-z]+ward)s|([上下左右前后东西南北]{1,2})(?:[边面侧]|方向?))\b"
)
# A sign that is not known to mean nothing is a word of its own: the √ of "5 or √7", the ! of "5! and 3", ′, ⁻, ∠
_PUNCTUATION = r"\s\-−–—‐‑.,;:!?'\"’‘“”„«»‹›`()\[\]/#$_…、。，．；：！？（）【】「」『』《》〈〉·•*✅✓✔☑\ufe0f"
_WORD = re.compile(
    rf"(?<=\b[a-g])#|-?\d+(?:st|nd|rd|th)\b|-?\d+(?:[.,]\d+)*|[^\W\d_]+|(?<=\d)!|(?<=\d)[:·‐‑–—−](?=\d)|[(\[](?=\s?-?\d[\d.]*\s?,)|[^\w{_PUNCTUATION}]"
)
# An article stands before a word; the A of "vitamin A" and of "A. 36 cm" is none.
_ARTICLE = re.compile(r"\b(?:an?\s+(?=[^\W\d_])|(?:the|it)\s+(?=\w))", re.IGNORECASE)
# What may be symbols, whose case counts, and no word: 5 mW, AB, mgh, Tt, cm Δ T, CO2
_MAYBE_SYMBOLS = re.compile(
    r"(?:[-+]?\d[\d.,]*\s*[A-Za-z]{1,3}|(?=.*[Α-ω])[A-Za-zΑ-ω]{1,4}(?:\s+[A-Za-zΑ-ω]{1,4})*"
    r"|(?!(?i:no|up|on|in|at|ok|ja|[ap]m|tv|u[ks])$)(?:[A-Za-z]{1,2}|(?:(?![AEIOUaeiou])[A-Za-zµ])+|[a-z]+[A-Z]"
    r"|(?:[A-Z][a-z]?\d*){2,}|[A-Z][a-z]?\d+))\.?"  # CO2 is not Co2, nor AABB AaBb
)
# A sign or a prime, which changes what letters stand for: -mg, Cl-, A'B'
_SIGN = re.compile(r"(?<!\w)[-−–+](?=[\w\\]|\sangle)|(?<=\w)[-−–+](?!\w)|(?:(?<=[A-Z\d])|(?<=\b[a-z]))'+(?![a-z])")
# What an adjective may stand without
_LABELLED = re.compile(
    r"(?:the )?(?:point|figure|page|picture|image|graph|curve|line|net|number|step|item|question|panel) "
    r"(?:number |no\.? ?)?(\(?(?:[A-Z]'?|\d+|[IVXivx]+)\)?)",
    re.I,
)
_COMPASS = {"N": "north", "E": "east", "S": "south", "W": "west"}
_HEAD = re.compile(
    r"(?:the )?(?!any |each |this |that |every |(?:negative|minus|[a-z]+ty) one)([a-z]{3,}(?:[ -](?:right|angled))?)"
    r" (?:line|bar|curve|slice|one|triangle|angle|function|number|correlation)"
    r"|(\w+)(?:三角形|函数)",
    re.I,
)
_TOWARDS = re.compile(r"^(?:(?:moving|going|pointing|heading|facing) )?(?:(?:to|towards?) (?:the )?)?", re.I)


def _is_accent(character: str) -> bool:
    """Whether it is a mark that people leave out; か and が are other letters, and so are มา and ม้า."""
    return unicodedata.combining(character) not in (0, 7, 8, 9, 107)


def _accents(text: str) -> str:
    return "".join(filter(_is_accent, unicodedata.normalize("NFKD", text.casefold())))


def _undotted(text: str) -> str:
    """Remove the dots of abbreviations: D.C. is DC."""
    return re.sub(r"\b([^\W\d_])\.(?=\S|$)", r"\1", text)


def words(text: str) -> tuple[str, ...]:
    """The words of `text`, without case, articles and punctuation, and `third` as `3rd`."""
    plain = _ORDINAL.sub(lambda match: ORDINALS[match[0]], _ARTICLE.sub("", _undotted(text)).casefold())
    plain = _COUNTRY.sub(lambda match: "uk" if match[1] else "us", plain)
    plain = "".join(c for c in unicodedata.normalize("NFKD", plain) if not _is_accent(c))  # Napoléon
    found = _WORD.findall(_ENDING.sub(r"\1\2\3", plain).replace("'", ""))
    return tuple(_SAME.get(word, word) for word in found)


def is_prose(text: str) -> bool:
    """Whether it is words, not mathematics: a word of two letters or more and no operator."""
    return (
        re.search(r"[^\W\d_]{2}|[\u4e00-\u9fff]", _undotted(text)) is not None
        and re.search(r"[\\^_=<>+*/|{}±∪∈°%¤π∞∅≈~∥⊥≅∩→⇒]|\d-|- \d", text) is None
        and MARKS.isdisjoint(text)
    )


def same_words(answer: str, gold: str) -> bool:
    """Whether both are words, and the same; 5 mW and 5 MW are not, nor are -mg and mg."""
    answer, gold = (_TOWARDS.sub("", text) or text for text in (answer, gold))
    plain = [text.strip(" .") for text in (answer, gold)]
    for headed, other in (plain, plain[::-1]):
        if (label := _LABELLED.fullmatch(headed)) and label[1].strip("()") == other.strip("()"):
            return True
        head = _COMPASS.get(headed) or (match := _HEAD.fullmatch(headed)) and (match[1] or match[2])
        if head and head.casefold() == other.casefold():
            return True
    if not is_prose(answer) or not is_prose(gold):
        return False
    if (accents := _accents(answer)) and (others := _accents(gold)) and accents != others:
        return False  # they may be missing, but bò is not bố
    left, right = words(answer), words(gold)
    if left != right and ("-" not in answer + gold or "".join(left) != "".join(right)):  # north-west
        return False
    if _SIGN.findall(answer) != _SIGN.findall(gold):
        return False
    symbols = _MAYBE_SYMBOLS.fullmatch(answer) and _MAYBE_SYMBOLS.fullmatch(gold)
    return not symbols or answer.split() == gold.split()


def squeezed(text: str) -> str:
    """Remove white space without meaning; `5 3/4` is not `53/4`."""
    return text if is_prose(text) else re.sub(r"(?<!\d)\s+|\s+(?!\d)|(?<=[A-Za-z])_(?=\d)", "", text)
