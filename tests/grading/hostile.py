"""Answers and golds built to hang, crash, fool or take over a grader, and a run over all of them.

As a command, `python hostile.py batch|thread|golds`, it grades them in a fresh process and prints the verdicts, the
seconds and the growth of the process's peak memory as JSON. Everything is graded in the current folder, so that code
that ran would leave the file `pwned` there.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import threading
import time

MANY = 100_000

Case = tuple[str, str, str]  # name, completion, gold


def box(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


def nested(left: str, centre: str, right: str, depth: int) -> str:
    return left * depth + centre + right * depth


def matrix(size: int) -> str:
    row = " & ".join(["1"] * size)
    return r"\begin{pmatrix}" + r" \\ ".join([row] * size) + r"\end{pmatrix}"


def shuffled(entries: list[str]) -> str:
    random.Random(0).shuffle(entries)
    return ", ".join(entries)


# ------------------------------------------------------------------- too much to compute: each is graded in a box

HARD_AGAINST_SEVEN = {
    "power tower": "9^{9^{9^9}}",
    "power tower without braces": "9^9^9^9^9",
    "python power tower": "9**9**9**9",
    "tower of twos": "2^{2^{2^{2^{2^{2^2}}}}}",
    "tower of a thousand": nested("2^{", "2", "}", 1000),
    "negative tower": "9^{-9^{9^9}}",
    "fractional tower": r"\left(\frac{3}{2}\right)^{9^{9^9}}",
    "scientific tower": r"1 \times 10^{10^{10}}",
    "exponent of a million digits": "2^{" + "9" * 10**6 + "}",
    "huge exponent": "1e999999999999",
    "tiny exponent": "1e-999999999999",
    "difference of huge powers": "10^{10000000} + 8 - 10^{10000000}",
    "huge power of nearly one": "(1+10^{-30})^{10^{30}}",
    "remainder of a huge power": r"8 + 7^{10^{15}} \bmod 7",
    "irrational tower": r"\pi^{\pi^{\pi^{\pi^{\pi}}}}",
    "imaginary tower": "i^{i^{i^{i^{i^{9^9}}}}}",
    "factorial": "100000000!",
    "factorial of factorials": "(((9!)!)!)!",
    "factorials in a row": "9!!!!!",
    "quotient of factorials": r"\frac{(10^9)!}{(10^9-1)!}",
    "word factorial": "factorial(10**9)",
    "binomial": r"\binom{1000000000}{500000000}",
    "gamma": r"\Gamma(10^{9})",
    "long sum": r"\sum_{k=1}^{10^{12}} k^k",
    "sum of sums": r"\sum_{i=1}^{100000} \sum_{j=1}^{100000} \sin(ij)",
    "sum without end": r"\sum_{k=1}^{\infty} \frac{\sin(k^3)}{k \ln(k+1)}",
    "long product": r"\prod_{k=1}^{10^9} (k^2+1)",
    "integral": r"\int_0^{\infty} e^{-x^4} \sin(x^3) \ln(1+x^5) \, dx",
    "integral of integrals": r"\int_0^1 \int_0^1 \int_0^1 \sqrt{x^2+y^2+z^2+x^y} \, dx \, dy \, dz",
    "indefinite integral": r"\int \frac{\sqrt{x^5+x+1}}{\sin x + \ln x} \, dx",
    "limit": r"\lim_{n \to \infty} \left(1+\frac{1}{n}\right)^{n^{n}}",
    "limit of limits": r"\lim_{x \to 0} \lim_{y \to 0} \frac{\sin(xy)^{\sin(x)}}{x^{y^{x}}}",
    "sixty signs": r"1 \pm 2" * 60,
    "signs in radicals": r"\pm \sqrt{2 \pm \sqrt{3 \pm \sqrt{5 \pm \sqrt{7 \pm \sqrt{11}}}}}" * 4,
    "radicals, thirty deep": nested(r"\sqrt{2+", "3", "}", 30),
    "radicals, a thousand deep": nested(r"\sqrt{2+", "3", "}", 1000),
    "sum of radicals": "+".join(rf"\sqrt{{{n}}}" for n in range(1000, 1080)),
    "product of radicals": "".join(rf"(\sqrt{{{n}}}+\sqrt[3]{{{n + 1}}})" for n in range(10, 40)),
    "roots of roots": nested(r"\sqrt[7]{3+", "2", "}", 25),
    "continued fraction": nested(r"1+\frac{1}{", "1", "}", 45) + " + 9",
    "long continued fraction": nested(r"1+\frac{1}{", "1", "}", 5000),
    "sines of sines": nested(r"\sin(", "2", ")", 45),
    "logarithms of logarithms": nested(r"\ln(", "10^{99}", ")", 45),
    "logarithm to base one": r"\log_{\log_2 2} 5",
    "matrix": matrix(300),
    "power of a matrix": matrix(8) + "^{1000000000}",
    "determinant": r"\det " + matrix(12),
    "least common multiple": r"\operatorname{lcm}(" + ",".join(map(str, range(10**9, 10**9 + 100))) + ")",
    "a number to factorise": "x = " + str((10**29 + 319) * 10**24 + 7),
    "million digits": "9" * 10**6,
    "million decimals": "7." + "0" * 10**6 + "1" + "3" * 10**6 + "e9",
    "long decimal": "0." + "3" * 5000,
    "digits with separators": "1,234," * MANY + "567",
    "one over zero": r"\frac{1}{0}",
    "zero to the zero": r"0^0 \cdot \frac{0}{0}",
    "infinity less infinity": r"\infty - \infty",
    "infinity over infinity": r"\frac{\infty}{\infty}",
    "tangent of a right angle": r"\tan 90^\circ",
    "logarithm of zero": r"\ln 0",
    "complex infinity": r"\frac{1}{\sin(0)}",
    "not a number": "nan",
}

HARD_AGAINST_EXPRESSION = {
    "power of a sum": "(x+1)^{99999}",
    "power of many": "(a+b+c+d+e+x)^{200}",
    "difference of powers": "(x+1)^{3000} - (x+2)^{3000}",
    "product of many": "".join(f"(x+{n})" for n in range(1, 300)),
    "power of powers": "((((x^9+1)^9+1)^9+1)^9+1)^9",
    "symbolic tower": "x^{x^{x^{x^{x^{x^x}}}}}",
    "powers of trigonometry": r"\cos^{99}(x)\sin^{99}(x)\tan^{99}(x)+\sin^{98}(2x)\cos^{97}(3x)",
    "trigonometry of trigonometry": r"\sin(\cos(\tan(\sin(\cos(\tan(\sin(\cos(\tan(x+y)))))))))",
    "radicals of letters": r"\sqrt{x+\sqrt{y+\sqrt{z+\sqrt{x y+\sqrt{y z+\sqrt{x z}}}}}}" * 3,
    "radical fraction": r"\frac{\sqrt[3]{x+\sqrt{x^2+1}}+\sqrt[3]{x-\sqrt{x^2+1}}}{\sqrt{x+\sqrt[5]{x^3-x+1}}}",
    "fractions of fractions": nested(r"\frac{x+", "y", "}{x-y}", 40),
    "hundred thousand terms": "+".join(f"{n}x^{{{n}}}" for n in range(MANY)),
    "many letters": "+".join(f"x_{{{n}}}y_{{{n}}}" for n in range(300)),
    "absolute values": "+".join(f"|x-{n}|" for n in range(60)),
    "floors": nested(r"\lfloor x \cdot ", "1.5", r"\rfloor", 40),
}

HARD_AGAINST_EQUATION = {
    "radical equation": r"\sqrt{x+1}+\sqrt{x+2}+\sqrt[3]{x+3}+\sqrt[5]{x+5}=x^7+1",
    "transcendental equation": r"\sin(x^x)+\ln(\cos x+2)=e^{x^2}-x^{\sin x}",
    "degree of fifty": "+".join(f"{n}x^{{{n}}}" for n in range(1, 50)) + "=0",
    "degree of a million": "x^{1000000}-x^{999999}+1=0",
    "inequality of high degree": "".join(f"(x-{n})" for n in range(60)) + "> 0",
    "trigonometric inequality": r"\sin(x)+\sin(2x)+\cos(3x)+\tan(5x) > \sqrt{x}",
    "chain of equals": "=".join(["7"] * 500 + ["8"]),
    "long chain of equals": "=".join(["7"] * MANY + ["8"]),
}

HARD_AGAINST_PAIR = {
    "tuple of a hundred thousand": "(" + ",".join(["1"] * MANY) + ")",
    "tuple of towers": "(9^{9^{9^9}}, 2)",
    "tuples in tuples": nested("(", "1, 2", ", 3)", 1000),
    "union of intervals": r" \cup ".join(f"[{n},{n + 1})" for n in range(0, 20_000, 2)),
    "short union of intervals": r"\cup".join(f"[{n},{n + 1})" for n in range(0, 300, 2)),
    "union of radical intervals": r"\cup".join(rf"(\sqrt{{{n}}},\sqrt{{{n + 1}}}]" for n in range(2, 80, 2)),
    "set of a hundred thousand": r"\{" + ",".join(map(str, range(MANY))) + r"\}",
    "sets in sets": nested(r"\{1,", "2", r"\}", 1000),
}

# The golds are as long as the answers: a matching that tries every pairing or every order never ends.
MATCHING = {
    "two hundred numbers": (shuffled([str(n) for n in range(199)] + ["777"]), ", ".join(str(n) for n in range(200))),
    "sixty radicals": (
        shuffled([rf"\sqrt{{{n}}}" for n in range(2, 62)]),
        r"\{" + ", ".join(rf"{n}^{{1/2}}" for n in range(3, 63)) + r"\}",
    ),
    "nearly equal entries": (
        ", ".join(rf"\sqrt{{{n}}}+10^{{-3}}" for n in range(2, 42)),
        r"\{" + ", ".join(rf"\sqrt{{{n}}}+10^{{-{n}}}" for n in range(2, 42)) + r"\}",
    ),
    "forty points": (
        shuffled([f"({n}, {n + 1})" for n in range(39)] + ["(5, 5)"]),
        ", ".join(f"({n}, {n + 1})" for n in range(40)),
    ),
}

# --------------------------------------------------------------------------- code, and markup that some tools execute

CODE = {
    "import": "__import__('os').system('touch pwned')",
    "import worth seven": "7 if __import__('os').system('touch pwned') == 0 else 8",
    "open": "7 + 0*len(open('pwned','w').name)",
    "exec": "exec(\"open('pwned','w')\")",
    "eval": 'eval(\'__import__("os").system("touch pwned")\')',
    "operator name": r"\operatorname{exec}(\text{open('pwned','w')})",
    "operator name, eval": r"\operatorname{eval}(3+4)",
    "subclasses": "().__class__.__bases__[0].__subclasses__()",
    "globals": "x.__init__.__globals__['__builtins__']['open']('pwned','w')",
    "lambda": "(lambda f: f(f))(lambda f: f(f))",
    "sympy call": "Function('f')(Symbol('x')).func.__module__",
    "sympify": 'S(\'__import__("os").system("touch pwned")\')',
    "integer power": "Integer(10)**Integer(10)**Integer(10)",
    "comprehension": "sum(1 for _ in iter(int, 1))",
    "walrus": "[y := 7, open('pwned','w')][0]",
    "format string": "{0.__class__.__mro__[1].__subclasses__}",
    "percent format": "%n%s%x" * 50,
    "f-string": "f\"{open('pwned','w')}\"",
    "template": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "lookup": "${jndi:ldap://localhost/a}",
    "yaml": "!!python/object/apply:os.system ['touch pwned']",
    "pickle": "cos\nsystem\n(S'touch pwned'\ntR.",
    "shell": "$(touch pwned) `touch pwned`; touch pwned",
    "write18": r"\immediate\write18{touch pwned}",
    "input": r"\input{/etc/passwd}",
    "macro bomb": r"\def\a{\a\a}\a",
    "csname": r"\csname exec\endcsname(7)",
}

# ------------------------------------------------------- texts as a whole: every one is graded as it stands, unboxed

SCANS = {
    "open boxes": r"\boxed{" * MANY,
    "boxes in boxes": nested(r"\boxed{", "8", "}", MANY),
    "empty boxes": r"\boxed{}" * MANY,
    "list of boxes": r"\boxed{8}, " * MANY,
    "different boxes": ", ".join(box(str(n)) for n in range(MANY)),
    "framed boxes": nested(r"\fbox{\boxed{", "8", "}}", MANY // 2),
    "boxes never closed, one after": r"\boxed{" * MANY + " and so " + box("8"),
    "braces": box(nested("{", "8", "}", MANY)),
    "open braces": "{" * MANY,
    "closing braces": "}" * MANY + box("8"),
    "escaped braces": box(nested(r"\{", "8", r"\}", MANY)),
    "brackets": box(nested("[", "8", "]", MANY)),
    "parentheses": box(nested("(", "8", ")", MANY)),
    "deep left": box(nested(r"\left(", "8", r"\right)", MANY)),
    "fractions": box(r"\frac" * MANY),
    "open fractions": box(nested(r"\frac{", "8", "}{2}", MANY)),
    "radical signs": box(r"\sqrt" * MANY),
    "deep radicals": box(nested(r"\sqrt{", "8", "}", MANY)),
    "environments": box(nested(r"\begin{pmatrix}", "8", r"\end{pmatrix}", 20_000)),
    "open environments": r"\begin{array}{c}" * MANY,
    "texts": box(nested(r"\text{", "8", "}", MANY)),
    "backslashes": box("\\" * MANY + "8"),
    "subscripts": box("x" + "_{x" * MANY + "}" * MANY),
    "primes": box("8" + "'" * MANY),
    "dollars": "$" * 10**6,
    "one letter": "a" * 10**6,
    "one letter in a box": box("a" * 10**6),
    "spaces": " " * 10**6,
    "spaces in a box": box("8" + " " * 10**6 + "8"),
    "line breaks": "\n" * 10**6 + "8",
    "dots": "." * 10**6,
    "minus signs": box("-" * 10**6 + "8"),
    "commas": box("," * 10**6),
    "semicolons and spaces": box("; " * 10**5 + "8"),
    "ones and spaces": box("1 " * MANY),
    "ones and slashes": box("1/" * MANY + "1"),
    "exponent marks": box("1e" * MANY),
    "a's and a bang": box("a" * 50_000 + "!"),
    "words": "word " * MANY,
    "closing think tags": "</think>" * MANY + "8",
    "opening think tags": "<think>" * MANY + box("7"),
    "think in think": nested("<think>", box("7"), "</think>", MANY),
    "answer tags": "<answer>" * MANY + "8",
    "answers in answers": nested("<answer>", "8", "</answer>", MANY),
    "list of answers": "<answer>8</answer>" * MANY,
    "marked answers": "<|answer_start|>" * MANY + "8" + "<|answer_end|>" * MANY,
    "halves of tags": "<answer" * MANY + ">8</answer>",
    "declarations": "The answer is " * MANY,
    "declarations in doubt": "If the answer is " * MANY,
    "declarations with a hash": "#### " * MANY,
    "conclusions": "So x is 8, so " * MANY,
    "declarations without end": "the answer is " + "the final " * MANY,
    "colons": "answer:" + ":" * MANY + "8",
    "hashes": "#" * 10**6 + " 8",
    "chinese declarations": "答案是" * MANY + "8",
    "chinese choices": "选" * MANY + "Ａ",
    "bold": "**" * MANY + "8",
    "everything open": r"<think></think><answer>\boxed{\frac{\sqrt{\left(\begin{pmatrix}\text{8",
    "null bytes": box("8\x00" * 1000),
    "lone surrogates": box("\ud800\udfff8\udc00"),
    "lone surrogates unboxed": "\ud83d" * 1000,
    "right to left": box("\u202e8\u202c\u200f"),
    "zero width": box("\u200b\u200c\u200d\ufeff" * 1000 + "8"),
    "homoglyph digits": box("\U0001d7d6\U0001d7d6"),
    "superscripts": box("8" + "⁹" * 1000),
    "vulgar fractions": box("½" * 1000),
    "numerals that are no digits": box("²③Ⅷ८"),
    "combining marks": box("8" + "\u0301" * MANY),
    "emoji": box("\U0001f468\u200d\U0001f469\u200d\U0001f467" * 1000),
    "control characters": box("".join(map(chr, range(32))) + "8"),
    "private use": box("\ue000\uf8ff\U0010ffff"),
    "capital that grows": box("ßİŉ" * 1000),
}

GOLDS = {
    "gold power tower": "9^{9^{9^9}}",
    "gold factorial": "100000000!",
    "gold long sum": r"\sum_{k=1}^{10^{12}} k^k",
    "gold integral": r"\int_0^{\infty} e^{-x^4} \sin(x^3) \ln(1+x^5) \, dx",
    "gold open box": r"\boxed{" * MANY,
    "gold braces": nested("{", "8", "}", MANY),
    "gold parentheses": nested("(", "8", ")", MANY),
    "gold million digits": "9" * 10**6,
    "gold fractions": nested(r"\frac{1}{", "8", "}", MANY),
    "gold million spaces": " " * 10**6 + "8",
    "gold code": "__import__('os').system('touch pwned')",
    "gold null bytes": "8\x00\x00",
    "gold lone surrogate": "\ud800",
    "gold polynomial": "(x+1)^{99999}",
    "gold equation": r"\sin(x^x)+\ln(\cos x+2)=e^{x^2}-x^{\sin x}",
    "gold set": r"\{" + ",".join(map(str, range(MANY))) + r"\}",
    "gold signs": r"1 \pm 2" * 60,
    "gold over zero": r"\frac{1}{0}",
    "gold tags": "<answer>" * MANY,
    "gold of one letter": "a" * 10**6,
}


def hard(answers: dict[str, str], gold: str) -> list[Case]:
    return [(name, f"We compute it from the figure: ${box(answer)}$", gold) for name, answer in answers.items()]


HOSTILE: list[Case] = [
    *hard(HARD_AGAINST_SEVEN, "7"),
    *hard(HARD_AGAINST_EXPRESSION, "x^2+1"),
    *hard(HARD_AGAINST_EQUATION, "x = 7"),
    *hard(HARD_AGAINST_PAIR, "(1, 2)"),
    *hard(CODE, "7"),
    *((name, box(answer), gold) for name, (answer, gold) in MATCHING.items()),
    *((name, text, r"\frac{1}{2}") for name, text in SCANS.items()),
]
HOSTILE_GOLDS: list[Case] = [(name, box("7"), gold) for name, gold in GOLDS.items()]


def items(cases: list[Case]) -> list[dict[str, str]]:
    """What `Grader.grade_batch` takes."""
    return [{"completion": completion, "gold": gold, "id": name} for name, completion, gold in cases]


def run(mode: str) -> dict:
    """Grades the hostile answers in one batch, one by one from a thread, or the hostile golds.

    Returns:
        `correct`, `reason` and `decided_by` by name, `seconds`, `growth_mb` of the peak of this process's memory, and
        `afterwards`, whether two right answers are still right.
    """
    from trl_mmreason.grading import Grader  # its memory is no part of the growth

    grader = Grader()
    grader.grade(box("x+1"), "1+x")
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    cases = HOSTILE_GOLDS if mode == "golds" else HOSTILE
    verdicts: list = []
    if mode == "thread":
        one_by_one = [(item["completion"], item["gold"]) for item in items(cases)]
        thread = threading.Thread(target=lambda: verdicts.extend(grader.grade(*pair) for pair in one_by_one))
        thread.start()
        thread.join()
    else:
        verdicts = grader.grade_batch(items(cases))
    seconds = time.perf_counter() - start
    by_name = {name: verdict for (name, *_), verdict in zip(cases, verdicts, strict=True)}
    return {
        **{
            part: {name: getattr(verdict, part) for name, verdict in by_name.items()}
            for part in ("correct", "reason", "decided_by")
        },
        "seconds": seconds,
        "growth_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024,
        "afterwards": [
            grader.grade(box(answer), gold).correct
            for answer, gold in ((r"\sqrt{5+2\sqrt{6}}", r"\sqrt{2}+\sqrt{3}"), ("7.0", "7"))
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(sys.argv[1])))
