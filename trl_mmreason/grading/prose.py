"""What sentences state: the value, the words or the choice behind a verb that states something.

A last sentence or clause that concludes ("So the area is 5 cm².") declares what it ends in, in every protocol. Other
sentences are only read by `Grader(prose=True)`, for benchmarks such as MathVista and MathVerse, whose authors have a
language model extract the answer; never for rewards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .declarations import YES_OR_NO, bare_answer, without_dressing
from .equivalence import MAGNITUDES, unit_of_number
from .moments import MONTHS
from .notation import comparisons_as_signs
from .units import asked_unit, parse_unit
from .words import FRACTIONS, NUMBER_WORDS, is_prose, words

_MOST_SENTENCES = 8
_LONGEST_SENTENCE = 600
_LONGEST_CONCLUSION = 160
_MOST_WORDS = 3  # between a verb and its value, and of a conclusion in words
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|\n+|(?<=[。！？])")

_NUMBER_WORDS = "|".join(
    [*(word for word in NUMBER_WORDS if word.isascii() and word != "one"), *FRACTIONS, *MAGNITUDES, "noon"]
)
_HAN = "一二三四五六七八九十百"
# What a value is made of, between spaces: formulas, brackets, numbers, letters with signs, signs, functions and words
_TERM = (
    r"(?:all (?:real numbers|reals)(?:\s(?:except|but)\s[^.,;]{1,40})?|\$[^$]{1,90}\$|\\\(.{1,90}?\\\)"
    r"|(?:\\?[(\[{⟨](?=[^()\[\]{}]*[\d+−-])[^()\[\]{}⟨⟩]{1,60}\\?[)\]}⟩])+(?:[/^*²³][\w/^*²³(){}]*)?"
    rf"|(?:a )?(?:\d+|half|quarter|five|ten|twenty)(?: minutes)? (?:to|past|in|out of) (?:{_NUMBER_WORDS}|\d+)"
    rf"|(?:[上下]午|早上|晚上)?\d{{1,2}}[点时](?:\d{{1,2}}分?|半|整)?|[{_HAN}]+分之[{_HAN}]+"
    r"|(?:(?:in|de)crease[ds]? (?:of|by) )?(?!\d+(?:st|nd|rd|th)\b)[-+−±]?\\?[$€£¥]?(?:[A-Za-z]{0,2}|[√(|])"
    r"\d[\w.,/^*·×²³⁻¹(){}%°‰:√π'′\"|+−-]*(?<![.,:\"])"
    r"|[-+−]?(?![aAI](?![\w/^*²³(+=]))[∠√△]?[A-Za-z](?![A-Za-z])[-+*/=<>^−|(⁻′')A-Za-z\d_¹²³₀-₄.°%]*(?<![.'])(?![A-Za-z'’])"
    r"|[-+−]?[∠√△]?[α-ωπ∞]+\S{0,6}(?<![.,;])|[-+*/=<>≤≥≠≈×·÷±^|−∪∩⊥∥:→]+(?=\s)"
    r"|[A-Z]{2,4}(?=\s[∥⊥≅~=])|(?<=[∥⊥≅~]\s)[A-Z]{2,4}|(?:arc)?(?:sin|cos|tan)|l[ng]|log|[b-df-hj-np-tv-xz]{2}(?=\s\S)"
    rf"|(?<=\bis )one|(?<=equals )one|one(?=[ -](?:{'|'.join(FRACTIONS)}))|(?:twenty|thirty)-one"
    rf"|(?:{'|'.join(month.capitalize() for month in MONTHS)})\b|(?i:(?:minus |negative )?(?:{_NUMBER_WORDS}))s?)"
    r"(?=[\s,.;:!?*”\"'’\u4e00-\u9fff，。；)-]|\Z)(?!\.\w)"
)
_BETWEEN = r"(?:,?\s(?:and|or|past)\s|[,，]\s?(?=[-−\d($\[]|[a-z][₀-₄_\d]*\s?=)|\s|-|\s?[、和]\s?)"
_VALUE = re.compile(rf"(?:(?<=[\u4e00-\u9fff])|(?<!\w)){_TERM}(?:{_BETWEEN}{_TERM})*")
_VALUED = re.compile(rf"[\dα-ω\\$∞⊥∥]|分之|all real|\b(?:sin|cos|tan|log|ln|one|{_NUMBER_WORDS})\b", re.I)
_BEHIND = re.compile(r"\s?(?:[\u4e00-\u9fff]{1,4}|[^\s\u4e00-\u9fff]+(?: [^\s\u4e00-\u9fff]+){0,2})")
_HALF_OF_DAY = re.compile(r"[apAP]\.?[mM]|per\s?mille?")
_NO_UNIT = re.compile(r"(?:^| )(?:in|an?|A)$")

STATES = re.compile(
    r"\b(?:is|are|was|were|be|being|equals?|gives?|giving|makes?|making|left with|leaves?|leaving|becomes?|yields?"
    r"|totals?|measures?|gets?|obtain|have|has|had|having|looks\slike|approximately|namely|means|reach(?:es)?|shows?|says|reads|costs?|needs?|takes?"
    r"|weighs?|contains?|find|produces|holding|lies\sin|points(?=\s(?:out|into|up|down|left|right))|it's|arriv\w+|results?\s+in|ends?\sup\swith|\w+ed\sby(?<!creased\sby)"
    r"|(?:belong|correspond|amount|lead|come|came|work|add|point|turn|simplifie)s?(?:\s(?:out|up))?\s(?:to(?:\sbe)?|as|on|at))\b\s?"
    r"|(?:[=≈是为]|等于|达到|[得有多少剩共了])\s?|[:：](?!\d)\s?|\bi\.e\.,?\s",
    re.I,
)
_GOVERNED = re.compile(
    r"\b(?:of|in|at|on|from|by|per|for|with|when|if|than|after|before|since|between|under|over|until|minus|figure)\b",
    re.I,
)
_CLAUSE = re.compile(r"[,;—–]\s|[，；]|\s(?:while|whereas|but|and(?=\s(?:the|its?)\s))\s")
_REASON = re.compile(
    r"(?:,?\sbecause\b|:\s(?:it|they|its|there)\b).*|,?\s(?:(?:since|as\s(?:we|it|there|the|shown))\b[^,]*$"
    r"|which\s(?=.*\b(?:twice|half|times|than|more|less|fewer)\b).*)|[,，]?因为[^，]*$",
    re.S,
)
_ASIDE = re.compile(r",?\s(?:which\s(?:is|are|was|means?|equals?|corresponds)|meaning|not)\b.*", re.S)
_COMPARATIVE = r"(?:more|less|fewer|greater|smaller|larger|higher|lower)"
_PART_OF = re.compile(rf"(?:\d|\b(?:{_NUMBER_WORDS}))\sof\s(?:the|these|all)\s\Z")
_CONDITION = re.compile(r",?\s(?:at|when|where|if|for)\s\$?[A-Za-z]\s?=[^,.]*\Z")
_BOUND = re.compile(
    rf"(?:\b(?:not|cannot)|n't)\s(?:\w+\s){{0,2}}\Z|\b(?:{_COMPARATIVE}\s+than|at\s+(?:least|most)|either|over|under"
    r"|below|above)\s+\Z",
    re.I,
)
_COMPARED = re.compile(rf"\s+{_COMPARATIVE}\b[^.]*\bthan\b", re.I)
_FORMULA = re.compile(r"(?:\\[a-z]+|[\w^*/+−-][({]|[)}])\s?\Z")  # that begins before what is read as a value
_HOW_MUCH = re.compile(r"\b(?:how (?:much|many) (?:more|less|fewer|\w+er)|difference)\b", re.I)

_LETTERS = r"(?:[A-J](?:,\s?|,?\sand\s|\s?和\s?))*[A-J]"
_LETTERED = re.compile(r"\W*[A-J](?:\W{0,2}[A-J])*\W*")
_CHOICE = re.compile(
    r"\b(?:option|choice|answer|letter)\s+(?:is\s+)?\(?([A-J])\)?(?![\w'])|(?<!\w)\(([A-Ja-j])\)(?!\w)"
    rf"|(?:\b(?:is|are|be|leaves|leaving|so)\s|[:：是,]\s?)({_LETTERS})[.!。]?\s*\Z"
    rf"|\b({_LETTERS})\s(?:(?:is|are)\s(?:all\s|both\s)?(?:right|correct|true)|fits?|match(?:es)?|works?)\b"
)
_BUT = re.compile(r"\bnot\b.*?\bbut\b")
_CLAIMED = re.compile(rf"(?:\A|[.!?\n]\s{{0,3}}|\b(?:so|thus|hence|therefore)[,:]?\s)({YES_OR_NO.pattern})", re.I)
_NEGATED = re.compile(r"\b(?:not|cannot)\b|n't|不|没")
_DETAIL = re.compile(
    r"\s(?:of|in|on|at|with|from|for|here|there|now|nor|that|who|which|above|below|behind)\b.*|\s\(.*", re.I | re.S
)
_REST = r"(?P<rest>(?:i\.e\.|[^.!?。！？\n]|\.\d)*)[.。．]?\Z"
# The last sentence, or its last clause, that concludes
_CONCLUSION = re.compile(
    r"(?:\A|[.!?]\s{1,3}|[\n。！？]|[,，;；]\s{0,3})[\s*]{0,4}"
    r"(?:(?i:so(?!\s(?:far|much|many|long|that)\b)|therefore|thus|hence|altogether|in\s(?:total|conclusion)|overall),?\s"
    rf"|∴|因此|所以|故|综上(?:所述)?|答[:：])[,，]?\s?{_REST}"
)
_WITHIN = re.compile(rf"(?=.*\b(?:therefore|thus|hence)\s){_REST}")  # The side is therefore 4.
# What is bold in the last sentence, and a sentence itself
_ONLY = re.compile(rf"[\s*]*{_REST}")
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*[^*.!?。\n]{0,40}[.。!]?\Z")
_NO_BOLD = re.compile(r"\b(?:not|never|cannot|than|wrong|mistake|guess|step)\b|n't|不")
_SYMBOL = re.compile(r"[a-z]|[a-z]{1,2}[²³]|[ckm]?[mgls]")  # of a vector or a unit
_SUPPOSED = re.compile(
    r"(?:\b(?:if|unless|suppose|assum\w+|let|were|would|might|could|perhaps|maybe)\b|若|如果|假设|可能)"
    r"(?:[^.!?。！？\n]|\.\d)*[.。]?\Z",
    re.I,
)
_NO_CONCLUSION = re.compile(
    r"\b(?:not|never|whether|may|cannot|either|than|at\s(?:least|most)|about|between|almost|guess|think|wrong|mistake|estimate"
    r"|but|while|whereas|twice|half of|(?:need|have|has|want)\sto|must(?!\sbe)|should|let|step)\b|,\sor\b|n't|不"
    r"|比[^，。]*[多少]|至少|至多|\d\s?[年天个]?[的多前后]"
    r"|\d\s(?:(?:high|low|few|long|tall|old|young|big|small|great|large|short|fast|slow|cheap)er|down|up|ago|ahead|too"
    r"|short)\b"
)
# Two things are stated
_BOTH = re.compile(
    r"\b(?:is|are|equals?)\s\S{1,20}\s(?:\w+\s)?and\s(?:\w+\s){1,3}(?:is|are)\b|[为是有]\d[^。]*[为是有]|或"
)
_EQUATED = re.compile(rf"(?:\A|\s)\S*[\d+*/)]\s?(?:\S\s)?(?:{STATES.pattern})", re.I)  # x + y is 7


class _Value(NamedTuple):
    start: int
    end: int
    text: str
    has_unit: bool


def _values(sentence: str) -> list[_Value]:
    """The values in a sentence, with units: `2.0 × 10^3 J`, `x = 4`, `40°, 60° and 80°`, `one fifth`, `3:30 PM`."""
    values: list[_Value] = []
    for match in _VALUE.finditer(sentence):
        if not _VALUED.search(match[0]) or match[0].lower() in MAGNITUDES:
            continue
        start, end = match.span()
        following = _BEHIND.match(sentence, end)
        behind = following[0] if following else ""
        while behind and end == match.end():
            unit = behind.strip().rstrip(".,;:!?)*")
            named = _HALF_OF_DAY.fullmatch(unit) or parse_unit(unit.replace("²", "^2").replace("³", "^3"))
            if named and not _NO_UNIT.search(unit):
                end += behind.index(unit) + len(unit)
            behind = behind[:-1] if behind[-1] >= "\u4e00" else behind.rpartition(" ")[0]
        if values and values[-1].has_unit and re.fullmatch(r",?\s(?:and\s)?", sentence[values[-1].end : start]):
            start = values.pop().start  # 2 hours and 15 minutes
        values.append(_Value(start, end, sentence[start:end], end > match.end()))
    return values


def concluded_answer(text: str, *, parts: bool = False, choices: Mapping[str, str] | None = None) -> str | None:
    """What the end of a text concludes: `So it is **25π/4**.`, `…, so x = 4`, `Thus it points to the left.`, `**17**`.

    It is the last sentence or clause behind a word such as "so", or what is bold in the last sentence. With `parts` all
    values are one list: `So it is 13 m long and 5 m wide.` A choice may be named by its text.
    """
    tail = text[-_LONGEST_CONCLUSION:].rstrip()
    bold = _BOLD.search(tail)
    plain = re.sub(r"\*\*([^*]+)\*\*", r"\1", tail).replace("$$", "$").replace("`", "$")
    plain = _worded(re.sub(r"\.?\$(\.?)\Z", r"$\1", plain))
    last = _SENTENCE.split(plain)[-1]
    bold = None if bold and (_NO_BOLD.search(last) or _SYMBOL.fullmatch(bold[1])) else bold
    if bold and (short := bare_answer(bold[1])):
        return short
    match = _CONCLUSION.search(plain) or _WITHIN.match(last) or (bold and _ONLY.fullmatch(bold[1]))
    if not match or _SUPPOSED.search(plain):
        return None
    rest = match["rest"]
    if choices and not _NEGATED.search(rest) and (label := _named(rest, choices)):
        return label
    return stated_value(rest, parts=parts)


def stated_value(sentence: str, *, parts: bool = False) -> str | None:
    """The value, the few words or the yes or no that one sentence states, with its unit."""
    if claim := YES_OR_NO.match(sentence):
        return claim[0]
    if _NO_CONCLUSION.search(sentence):
        return None
    sentence = _unconditional(sentence)
    values = _values(sentence)
    if parts and len(values) > 1:
        digits = [value.text for value in values if re.search(r"\d", value.text)]
        return ", ".join(digits or [value.text for value in values])
    if _BOTH.search(sentence):
        return None
    start = values[-1].start if values else len(sentence)
    verbs = [verb for verb in STATES.finditer(sentence) if verb.end() <= start]
    stated = verbs[-1].end() if verbs else 0
    if not values:
        said = without_dressing(sentence[stated:])
        return said if verbs and len(said.split()) <= _MOST_WORDS and not re.search(r"[,，:=]", sentence) else None
    before, after, value = sentence[stated:start], sentence[values[-1].end :], values[-1].text
    if verbs and "=" not in verbs[-1][0] and any(one.end() == stated for one in _EQUATED.finditer(sentence)):
        return None
    if len(before.split()) > len(verbs[-1:]) or _GOVERNED.search(before + after) or len(after.split()) > 2:
        only = len(values) == 1 and not re.search(r"\bor\b", value) and not _FORMULA.search(sentence, 0, start)
        return without_dressing(value) if only and (is_prose(after) or not after.strip(" ,")) else None
    answer = without_dressing(re.sub(r"^\$([^$]+)\$", r"\1", sentence[start:]))
    if unit_of_number(answer) or not after:
        return answer
    return without_dressing(value) if is_prose(after) else None if is_prose(answer) else answer


def _unconditional(sentence: str) -> str:
    """Without where a value is taken: `The maximum is 5 at x = 2`."""
    shorter = _CONDITION.sub("", sentence)
    return shorter if _values(shorter) else sentence


def _worded(text: str) -> str:
    """Write comparisons and equality in words as signs: at least 3, longer than 4 cm, y equals 3."""
    text = text.replace("$$", "$").replace("．", "。")
    return re.sub(r"\b([a-z])\s(?:equals|is equal to)\s(?=[-\d\\$])", r"\1 = ", comparisons_as_signs(text))


def last_statement(
    text: str, golds: Sequence[str] = (), choices: Mapping[str, str] | None = None, question: str | None = None
) -> str | None:
    """What the last sentence that states something states: a choice, yes or no, words or a value, as the golds are."""
    if golds and not choices and all(YES_OR_NO.fullmatch(gold.strip(" .")) for gold in golds):
        return next((claim[1] for claim in reversed([*_CLAIMED.finditer(text)])), None)
    in_words = bool(golds) and not choices and all(is_prose(gold) and not _values(gold) for gold in golds)
    lettered = bool(choices) or all(_LETTERED.fullmatch(gold) for gold in golds)
    for sentence in [one for one in _SENTENCE.split(text) if one.strip()][: -_MOST_SENTENCES - 1 : -1]:
        plain = _worded(_REASON.sub("", sentence[-_LONGEST_SENTENCE:]))
        if lettered and not _NEGATED.search(_BUT.sub("", plain)) and (named := _named(plain, choices or {})):
            return named
        if in_words:
            return next((gold for gold in golds if _says(plain, gold, question)), None)
        if (found := _stated(plain, question)) is not None:
            return found
    return None


def _named(sentence: str, choices: Mapping[str, str]) -> str | None:
    """The choice that a sentence names last by its letter, or alone by its text: in it, behind a verb, in a clause."""
    if re.search(r"\b(?:(?:rul|exclud|eliminat)\w+\b|none of\b)", sentence, re.I):
        return None
    if labels := list(_CHOICE.finditer(sentence)):
        return next(filter(None, labels[-1].groups()))
    texts = {label: known.casefold() for label, known in choices.items() if known and is_prose(known)}
    for said in (sentence, STATES.split(_BUT.sub("", sentence))[-1], _CLAUSE.split(sentence)[-1]):
        named = [
            label for label, text in texts.items() if re.search(rf"(?<!\w){re.escape(text)}(?!\w)", said.casefold())
        ]
        named = [label for label in named if not any(texts[label] in texts[other] != texts[label] for other in named)]
        if len(named) == 1:
            return named[0]
    return None


def _says(sentence: str, gold: str, question: str | None) -> bool:
    """Whether the last clause ends in these words, or a verb follows them and then what the question has, too."""
    clauses = [one for one in _CLAUSE.split(sentence.strip().rstrip(".。!")) if not _NEGATED.search(one)]
    asked = {*words(question or ""), "therefore"}
    stating = [one for one in clauses if STATES.search(one)] or clauses[-1:] or [""]
    clause = max(reversed(stating), key=lambda one: len(asked.intersection(words(one))))  # the last of those
    places = [clause]
    for verb in STATES.finditer(clause):
        said = clause[verb.end() :]
        short = _DETAIL.sub("", said.removeprefix("that of "))
        subject = clause[: verb.start()].strip().removesuffix(" one")
        named = [*words(short)]
        while named and named[-1] in asked:  # a brown colour
            named.pop()
        places += [said, short, " ".join(named) if named else subject if question else ""]
    ending = " " * gold.isascii() + " ".join(words(gold))
    return bool(words(gold)) and any(f" {' '.join(words(place))}".endswith(ending) for place in places)


def _stated(sentence: str, question: str | None) -> str | None:
    """The value behind a verb in the last clause that has one, rather without a preposition before it."""
    sentence = _unconditional(sentence.rstrip(".。"))
    verbs, values = list(STATES.finditer(sentence)), _values(sentence)
    main = len(_ASIDE.sub("", sentence))  # an aside tells the same again, if what is before it states a value
    last = max((verb.end() for verb in verbs if verb.end() <= main), default=0)
    if any(value.start <= last < value.end <= main for value in values):
        values = [value for value in values if value.end <= main]
    asked = question and _HOW_MUCH.search(question)
    values = [one for one in values if not _PART_OF.search(sentence, 0, one.start)]
    if counted := question and re.search(r"\b[Hh]ow many (\w{3,})", question):
        values = [one for one in values if counted[1] in sentence[one.start : one.end + 20]] or values
    if unit := asked_unit(question):
        values = [
            one for one in values if (own := unit_of_number(one.text)) and own.dimensions == unit.dimensions
        ] or values
    clauses = [clause.end() for clause in _CLAUSE.finditer(sentence)]
    ranked, found = [], None
    for value in values:
        if _BOUND.search(sentence, 0, value.start) or not asked and _COMPARED.match(sentence, value.end):
            continue
        found = value
        start = max((end for end in clauses if end <= value.start), default=0)
        stated = max((verb.end() for verb in verbs if start <= verb.start() and verb.end() <= value.start), default=-1)
        gap = sentence[max(stated, start) : value.start]
        direct = "=" in value.text or not _GOVERNED.search(gap) and len(gap.split()) <= _MOST_WORDS
        if stated >= 0 or "=" in value.text:
            ranked.append((start, direct, value.start if direct else -value.start, value))
    best = max(ranked)[-1] if ranked else found
    if best and ("≈" in best.text or _FORMULA.search(sentence, 0, best.start)):
        return without_dressing(re.split(r"[=≈]", best.text)[-1])
    return best and without_dressing(best.text)
