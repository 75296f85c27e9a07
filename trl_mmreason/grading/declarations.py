"""Find answers without a box: declared in words ("the answer is 4", `#### 4`, 答案是), or a bare line."""

from __future__ import annotations

import re

_LONGEST_BARE = 100
_MOST_DECLARATIONS = 500  # from the end of a text; each costs up to 0.1 ms

# White space between words is bounded, and so is what stands between "answer to" and "is": a match costs a constant.
_WORDING = r"(?:final|correct|right|best)[\s_]{1,3}"
_NAME = (
    rf"(?:\bthe\s{{1,3}})?\b(?:(?:{_WORDING})?(?<!\bto\s)(?<!wrong\s)(?<!incorrect\s)(?<!wrong\sfinal\s)(?<!incorrect\sfinal\s)(?:answers?|ans)"
    rf"(?:\s{{1,3}}(?:choice|option))?|{_WORDING}(?:options?|choices?|letters?))\b"
)
_ADVERB = (
    r"\s{1,3}(?:therefore|thus|hence|simply|indeed|clearly|also|actually|obviously|definitely|then|now|still"
    r"|(?:most\s{1,3})?(?:likely|probably))\b"
)
_IS = rf"\s{{1,3}}(?:is|are|(?:would|should|must|will)\s{{1,3}}be)\b(?:{_ADVERB})?"
_COLON = r"[*_`\"]{0,4}(?:\s{0,3}[:：=]|\.?\s{1,3}[-–—](?=\s))"
_CHINESE_NAME = r"(?:最终|正确|标准)?的?答案|正确的?选项"
_CHINESE_IS = r"[*_】\]]{0,4}\s{0,3}(?:应该?|就)?(?:[是为為]|等于|[:：=])|】"
_DECLARATION = re.compile(
    # Every wording begins with one of these characters; looking for them first makes the scan three times as fast.
    r"(?=[#*_>TAFCRB最正标的答故应應选選])(?:"
    rf"(?P<heading>^[ \t#*_>]{{0,12}}(?:(?:{_WORDING})?answer|(?:最终|正确)?答案)[ \t*_]{{0,8}}$)"
    r"|(?P<hashes>(?<!\S)\#{4}(?!\#))"
    rf"|{_NAME}(?:{_COLON}|(?:\s{{1,3}}(?:to|for)\s[^.\n:：]{{1,80}}?)?{_IS})"
    rf"|(?<!错误)(?<!错误的)(?:{_CHINESE_NAME})(?:{_CHINESE_IS})"
    r"|(?<!不)[故应應][选選][择擇]?"
    # Without such a word before it, "choose" declares only if a letter follows and nothing says "do not".
    r"|(?<!不)(?<!不[能应该会])[选選][择擇]?[\s:：]{0,4}(?=[(（【]?\s?[A-ZＡ-Ｚ]))",
    re.I | re.M,
)
# A letter that is chosen in a sentence: before "is correct", or after "I choose" and "which matches option".
_CHOICES = r"\*{0,2}\(?[A-J]\)?\*{0,2}(?:(?:\s{0,2}[,&/]|\s{1,2}and|\s{1,2}or){1,2}\s{0,2}\(?[A-J]\)?){0,6}(?![\w'])"
_NOUN = r"(?i:options?|choices?|answers?|letters?)\s{1,3}"
_LEAD = r"(?i:(?:so|thus|hence|therefore|that|and|then|only|both),?\s{1,3}){1,2}"
_CHOSEN = re.compile(
    rf"(?:\b{_NOUN}|\A|^|(?<!\b[A-J])[.!?;:,]\s{{1,3}})(?:\b{_LEAD})?(?:{_NOUN})?(?P<subject>{_CHOICES})\s{{1,3}}"
    r"(?i:is|are|must\s+be|has\s+to\s+be|should\s+be|would\s+be|seems|looks)\s{1,3}"
    r"(?i:(?:the|my|our|clearly|indeed|therefore|thus|only|both|all)\s{1,3}){0,2}"
    r"(?i:(?:final|correct|right|best|only|true)\s{1,3}){0,2}"
    r"(?i:correct|right|best|true|answers?|choices?|options?|one)\b(?!\s*\?)"
    r"|\b(?i:I|we|one)(?i:\s{1,3}(?:would|will|shall|must|should|therefore|thus|have\s+to|am|are)|'d|'ll|'m|'re){0,2}"
    r"\s{1,3}(?i:choos(?:e|ing)|pick(?:ing)?|select(?:ing)?|go(?:ing)?\s+(?:with|for)|opt(?:ing)?\s+for|chose|picked"
    rf"|selected)\s{{1,3}}(?:(?i:the)\s{{1,3}})?(?:{_NOUN})?(?={_CHOICES})"
    r"|\b(?i:my\s{1,3}(?:choice|pick|selection|option))(?:\s{1,3}(?i:is|would\s+be)|:)\s{0,3}"
    rf"(?:{_NOUN})?(?={_CHOICES})"
    r"|\b(?i:matches|corresponds\s+to|agrees\s+with|(?:which|that|this|it)\s+is|it's|that's|must\s+be)\s{1,3}"
    rf"(?:(?i:with|the)\s{{1,3}})?{_NOUN}(?={_CHOICES})"
    # "It's B.", "Hence (B)" and "Solution: B" at the end of a line
    rf"|(?:\b(?i:it's|it\s+is|that's)\s{{1,3}}|(?:^|[.!?]\s{{1,3}}){_LEAD}|^\W{{0,4}}(?i:correct|solution|result|final)\s?:\s?)"
    rf"(?=\(?[A-J]\)?\*{{0,2}}(?:[.!]?\s*$|,\s))"
    r"|\b(?i:the\s{1,3}(?:option|choice|letter)(?:\s{1,3}(?:that|which)\s{1,3}(?:best\s{1,3})?(?:fits|matches|applies))?\s{1,3}is)"
    rf"\s{{1,3}}(?={_CHOICES})"
    r"|选项\s?(?P<chinese>[A-J])\s?(?:是)?(?:正确|对)",
    re.M,
)
# What makes nothing of a declaration: a doubt before it in its sentence, or a word that takes it back after it.
_DENIED = re.compile(
    r"\b(?:least\s+likely|worst|second[- ]best|tempting|unlikely)\s+\Z"
    r"|(?:\b(?:not|never|whether|if|unless)|n't)(?:\s+(?:think|believe|say|sure|clear|true|the\s+case|mean))?(?:\s+that)?\s*\Z"
    r"|(?:\b(?:suppose|assume|assuming|doubt|unlikely|wonder|nobody|no\s+one|cannot\s+say|no\s+way|(?:false|mistake|wrong)\s+to"
    r"|false\s+that|not\s+true\s+that|might\s+(?:think|say|guess)|(?:some|other)\s+people|claim(?:ed|s)?)|n't\s+(?:think|believe)"
    r"|\b(?:students|they|some|many|someone)\s+(?:\w+\s+)?(?:think|say|believe|guess|choose)\b"
    r"|\bnot\s+(?:think|believe)|\bno\s+(?:proof|evidence|reason))\b(?:(?!\bbut\b)[^.!?\n])*\Z"
    r"|(?:不认为|怀疑|不能说|难说|没有证据|有人说|不是说|不确定)[^。！？，\n]*\Z",
    re.I,
)
_WITHDRAWN = re.compile(
    r"[^.!?\n]{0,80}?[.,;]?\s{1,3}(?:but\s+|and\s+)?(?:that|this|it|which)(?:'s|\s+is|\s+was)\s+(?:wrong|incorrect|false"
    r"|not\s+(?:right|correct|true))\b|[^.!?\n]{0,60}?\bbut\s+(?:it\s+is\s+really|it\s+isn't|I\s+disagree)",
    re.I,
)
# The next sentence that takes an answer back: "Wait, that is wrong." "Actually, it should be 25."
TAKES_BACK = re.compile(
    r"[\s$*_)\]\\.!;,]{0,9}(?:but\s|oh,?\s)?\b(?:wait|no|hmm+|actually|correction|oops|sorry|hold\s+on)\b(?:[^.!?\n]|\.\d){0,80}?"
    r"\b(?:wrong|incorrect|mistake|mistaken|mis-?read|fails|not\s+(?:right|correct|true)|(?:should|must|ought\s+to)\s+(?:be|have\s+been))\b",
    re.I,
)
_TAKEN_BACK = re.compile(r"\b(?:wait|actually|however|instead|correction|mistake)\b|^\W*\(?[A-J][).:]\W", re.I | re.M)
_WORD = re.compile(r"[^\W\d_]{2}")
_BULLET = re.compile(r"\A[\s:：=>*]*\n\s*(?:[-*•+]|1\.)\s+")  # of a list below the declaration, no minus
_LEADING = " \t\r\n:：=>"
_TRAILING = " \t\r\n,;:，；、："

# A full stop ends a sentence if white space follows, unless it belongs to one of a few abbreviations.
_SENTENCE_END = re.compile(
    r"\n|。|．(?!\d)"
    r"|(?<!\bsq)(?<!\bcu)(?<!\bst)(?<!\bdr)(?<!\bmr)(?<!\bmrs)(?<!\bapprox)(?<!\bjan)(?<!\bfeb)(?<!\bmar)(?<!\bapr)"
    r"(?<!\bjun)(?<!\bjul)(?<!\baug)(?<!\bsept)(?<!\bsep)(?<!\boct)(?<!\bnov)(?<!\bdec)(?<!\bi\.e)(?<!\be\.g)(?<!\.)\.(?=[*_\"'”)\]$]{0,4}(?:\s|\Z))",
    re.I,
)
# After "yes" and "no" the reason stays: it may belong to a choice's text, and comparing cuts it where it does not.
_REASON = re.compile(
    r"(?<!\byes)(?<!\bno)(?<!\byes,)(?<!\bno,)(?:(?:[,;，；(]\s{0,3}|\s)(?:because|since)\b|[,;，；(]\s{0,3}(?:as|so|which|where|not|but)\b)"
    r"|[,;(]\s{0,3}(?:or\s)?(?:about|approximately|approx\.|roughly)\s"
    r"|(?<!是)(?<!否)[,;，；(（]?\s?(?:因为|由于|所以|因此)",
    re.I,
)
_PART = re.compile(r"\((?:[1-9]|[a-h]|i{1,3})\)\s?\S")
_LETTER = re.compile(r"[A-ZＡ-Ｚ]", re.I)
_LABEL = re.compile(r"[(（][A-ZＡ-Ｚ][)）]|[A-ZＡ-Ｚ][.:)．：、）]", re.I)

# What makes a line a sentence and no answer: a pronoun as its subject, or one of the verbs that reasoning is told with.
# Words that are answers too stay out: i, May, mean, equal, "does not exist", 不可能, 不是正方形.
_SENTENCE = re.compile(
    r"\b(?:I(?=\s(?!and\b|or\b)[a-z])|I'm|we|it|he|she|they|there|let|is|are|was|were|am|has|have|had|will|would|could"
    r"|should|might|must|makes?|gives?|gave|equals|gets?|got|thinks?|guess|believe|sees?|counted|looks|seems|means|finds?"
    r"|needs|knows?|so|therefore|because)\b|\?|？|我|认为|觉得|等于|应该|所以|因此|因为|得到|得出|共有|(?<=[^不\s])是",
    re.I,
)
YES_OR_NO = re.compile(
    r"(?:yes|no|true|false|是的?|不是|否|对|不对)(?=\s?(?:[,.;:!—，。；：！]|because\b|since\b|因为|\Z))", re.I
)

_BOLD = re.compile(r"(?<![\w)\]}])\*\*([^*]+)\*\*(?![\w(])")  # not the powers of 2**3 + 4**5
_MATH = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_QUOTES = (("*", "*"), ("_", "_"), ("`", "`"), ('"', '"'), ("'", "'"), ("“", "”"), ("‘", "’"), ("「", "」"))
_MOST_LAYERS = 4


def declared_answer(text: str) -> str | None:
    """The answer in the last declaration, up to the end of its sentence, without reasons; `None` without any."""
    end = len(text)
    marks = [*_DECLARATION.finditer(text), *_CHOSEN.finditer(text)]
    for mark in sorted(marks, key=lambda mark: mark.end(), reverse=True)[:_MOST_DECLARATIONS]:
        region, text_follows = text[mark.end() : max(end, mark.end())], end < len(text)
        end = mark.start()  # no declaration reaches into the next one, so the regions are disjoint
        if _DENIED.search(text, max(end - _LONGEST_BARE, 0), mark.start()) or _WITHDRAWN.match(text, mark.end()):
            continue
        sentence = _SENTENCE_END.search(text, mark.end(), mark.end() + _LONGEST_BARE)
        if sentence and TAKES_BACK.match(text, sentence.start()):
            continue
        if mark.re is _CHOSEN and (subject := mark["subject"] or mark["chinese"]):
            return subject.replace("*", "")
        if mark.re is _DECLARATION and mark["hashes"] and _is_heading(region, text_follows):
            continue
        if answer := _first_statement(region):
            return answer
    return None


def bare_answer(text: str) -> str | None:
    """The whole text, if it is short and a line, or one for each of (1), (2), …; a reason may follow a yes or no."""
    text = text.strip()
    if len(text) > _LONGEST_BARE:
        return None
    if "\n" in text:
        parts = [bare_answer(line) for line in text.splitlines()]
        return "; ".join(filter(None, parts)) if all(part and _PART.match(part) for part in parts) else None
    answer = without_dressing(text.lstrip("#"))
    return answer if answer and not answer.endswith((":", "：")) and _is_bare(answer) else None


def declares_nothing(text: str) -> bool:
    """Whether the text ends where an answer is announced: `The answer is`."""
    return any(mark.end() == len(text.rstrip()) for mark in _DECLARATION.finditer(text.rstrip()))


def opening_choice(text: str) -> str | None:
    """The first line, if it is a letter with or without its text and what follows is a reason, no list of choices."""
    line, _, reason = text.strip().partition("\n")
    answer = without_dressing(line)
    named = (_LABEL.match(answer) or _LETTER.fullmatch(answer)) and answer[0] in "(ABCDEFGHIJ" and _is_bare(answer)
    return answer if named and not _TAKEN_BACK.search(reason) else None


def without_dressing(text: str) -> str:
    """Remove bold, enclosing mathematics delimiters, quotation or code marks, and a final full stop."""
    text = _BOLD.sub(r"\1", text)
    for _ in range(_MOST_LAYERS):
        before = text
        text = text.strip().removeprefix("**").removesuffix("**")
        if text.endswith((".", "。", "．")) and not text.endswith(".."):
            text = text[:-1]
        text = _without_pair(text.strip(), _MATH + _QUOTES)
        if text == before:
            break
    return text


def without_math_delimiters(text: str) -> str:
    r"""Remove outer white space and an enclosing `$…$`, `$$…$$`, `\(…\)` or `\[…\]`."""
    return _without_pair(text.strip(), _MATH)


def _without_pair(text: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for opening, closing in pairs:
        if text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : len(text) - len(closing)]
            # "$3$ and $4$" is not one pair around all of it.
            if inner and opening not in inner and closing not in inner:
                return inner.strip()
    return text


def _is_heading(region: str, text_follows: bool) -> bool:
    """`#### Check` with text under it is a heading; `#### 4` is an answer wherever it stands."""
    line, _, below = region.strip(" \t").partition("\n")
    return bool(_WORD.search(line)) and (text_follows or bool(below.strip()))


def _first_statement(region: str) -> str:
    """The answer at the start of the text after a declaration; empty if there is none."""
    region = _BULLET.sub("", region).lstrip(_LEADING)
    if not region:
        return ""
    region = _BOLD.sub(r"\1", region).removeprefix("**").lstrip(_LEADING)
    region = region if "{" in region else re.sub(r"\}\W*$", "", region)
    if region[:1] == '"' and (end := region.find('"', 1)) > 0:  # of JSON
        return region[1:end]
    if "\n" in region.strip() and _PART.match(region) and (whole := bare_answer(region)):
        return whole
    math_end = _math_end(region)
    end = _end(_SENTENCE_END, region, math_end)
    statement = region[: min(end, _end(_REASON, region, math_end))].rstrip(_TRAILING)
    if math_end and not _is_bare(statement[math_end:]):
        statement = statement[:math_end]
    answer = without_dressing(statement)
    # "C. 24 cm": the full stop after a letter ends no sentence if what follows it on the line is the choice's text.
    rest = region[end:].partition("\n")[0] if _LETTER.fullmatch(answer) and region[end : end + 1] == "." else ""
    text = without_dressing(rest[1:])
    return f"{answer}. {text}" if text and len(text) <= _LONGEST_BARE and _is_bare(text) else answer


def _math_end(region: str) -> int:
    """End of the mathematics at the start of the text; 0 if there is none. A `$` may also be a price."""
    for opening, closing in _MATH:
        if region.startswith(opening):
            limit = _end(_SENTENCE_END, region, 1) if opening == "$" else len(region)
            close = region.find(closing, len(opening), limit)
            return close + len(closing) if close >= 0 else 0
    return 0


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    return match.start() if (match := pattern.search(text, start)) else len(text)


def _is_bare(text: str) -> bool:
    """Whether a line is an answer: a choice with its text, a yes or no, or anything but a sentence."""
    known = _LABEL.match(text) or YES_OR_NO.match(text)
    return bool(known) or not (_SENTENCE.search(text) or _SENTENCE_END.search(text))
