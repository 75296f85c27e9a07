"""Whatever the text, the grader answers, and answers the same way round."""

import math
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trl_mmreason.grading import Grader, Verdict, equivalent, extract_answer

FUZZED = settings(
    derandomize=True, database=None, deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)
GRADER = Grader()

# What LaTeX and answers are made of, in pieces that fit together or do not.
FRAGMENTS = r"""
\frac \sqrt \boxed{ \boxed \text{ \left( \right) \left[ \right] \{ \} \pi \infty \cup \pm \cdot \times \sin \ln \le >
= \neq { } ( ) [ ] , ; : . _ ^ ! | & % $ \% \\ \begin{pmatrix} \end{pmatrix} \sum_{k=1}^{3} \int_0^1 \binom{4}{2}
0 1 2 7 -3 0.5 1,234 1e-7 x y i e A B C cm m^2 kg yes no and or the <think> </think> <answer> </answer>
答案是 选 ， ７ Ａ 米 个 ^\circ ½ √ − ∞
"""
PIECES = [*FRAGMENTS.split(), " ", "\n"]
GOLDS = ["7", r"\frac{1}{2}", "x^2+1", "(1, 2)", "B", "50 cm", r"25\%", "red", "[0, 1)", "2, 3", "y = 2x + 1", "12,345"]

glued = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
braces = st.text(alphabet="{}[]()7,", max_size=60)
latin = st.binary(max_size=200).map(lambda octets: octets.decode("latin-1"))
anything = st.text(st.characters(), max_size=100)  # lone surrogates and controls among them
texts = st.one_of(glued, braces, latin, anything)
boxed = texts.map(lambda text: rf"\boxed{{{text}}}")


@FUZZED
@given(st.one_of(texts, boxed), st.sampled_from(GOLDS))
def test_a_usable_gold_gets_a_verdict(completion, gold):
    verdict = GRADER.grade(completion, gold)
    assert isinstance(verdict, Verdict)
    assert verdict.correct in (True, False)
    assert len(verdict.reason.splitlines()) == 1
    if verdict.correct:
        assert verdict.extracted


@FUZZED
@given(st.one_of(texts, boxed), st.one_of(texts, st.lists(texts, max_size=3)))
def test_any_gold_gets_a_verdict(completion, gold):
    verdict = GRADER.grade(completion, gold)
    assert verdict.correct in (True, False, None)
    assert len(verdict.reason.splitlines()) == 1


@FUZZED
@given(st.one_of(texts, boxed), st.dictionaries(st.sampled_from("ABCD"), texts, min_size=2))
def test_choices_of_any_text(completion, choices):
    verdict = GRADER.grade(completion, min(choices), choices=choices)
    assert verdict.correct in (True, False)


@FUZZED
@given(texts)
def test_what_is_extracted_stands_in_the_text(text):
    answer = extract_answer(text)
    assert answer is None or answer.strip()


# ------------------------------------------------------------------------------------------------- well-formed answers

integers = st.integers(-(10**9), 10**9)
fractions = st.tuples(integers, st.integers(1, 10**4)).map(lambda pair: Fraction(*pair))
decimals = st.tuples(st.integers(-(10**6), 10**6), st.integers(1, 5))


def as_fraction(value):
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def as_decimal(digits, places):
    sign = "-" if digits < 0 else ""
    whole, rest = divmod(abs(digits), 10**places)
    return f"{sign}{whole}.{rest:0{places}}"


numbers = st.one_of(integers.map(str), fractions.map(as_fraction), decimals.map(lambda pair: as_decimal(*pair)))
letters = st.sampled_from("xyab")
terms = st.tuples(st.integers(2, 99), letters, st.integers(2, 5)).map("{0[0]}{0[1]}^{{{0[2]}}}".format)
expressions = st.lists(st.one_of(terms, numbers.filter(lambda n: n[0] != "-")), min_size=1, max_size=4).map("+".join)
tuples = st.lists(numbers, min_size=2, max_size=4).map(lambda entries: f"({', '.join(entries)})")
sets = st.lists(numbers, min_size=1, max_size=4).map(lambda entries: rf"\{{{', '.join(entries)}\}}")
quantities = st.tuples(numbers, st.sampled_from(["cm", "m^2", "kg", r"\text{ km/h}", "^\\circ"])).map(" ".join)
radicals = st.tuples(st.integers(2, 99), st.integers(2, 99)).map(lambda pair: rf"{pair[0]}\sqrt{{{pair[1]}}}")
mathematics = st.one_of(numbers, expressions, tuples, sets, quantities, radicals)


@FUZZED
@given(st.one_of(mathematics, st.sampled_from(GOLDS)))
def test_every_answer_equals_itself(answer):
    verdict = GRADER.grade(rf"So it is $\boxed{{{answer}}}$.", answer)
    assert verdict.correct is True, verdict


@FUZZED
@given(mathematics, mathematics)
def test_equivalence_is_symmetric(one, other):
    assert equivalent(one, other) == equivalent(other, one)


@FUZZED
@given(fractions, st.integers(2, 50))
def test_unreduced_fractions_are_equal(value, factor):
    unreduced = rf"\frac{{{value.numerator * factor}}}{{{value.denominator * factor}}}"
    assert equivalent(unreduced, as_fraction(value))


@FUZZED
@given(decimals)
def test_decimals_equal_their_fractions(pair):
    digits, places = pair
    assert equivalent(as_decimal(digits, places), as_fraction(Fraction(digits, 10**places)))


@FUZZED
@given(integers, integers)
def test_integers_are_equal_only_when_they_are(one, other):
    assert equivalent(str(one), str(other)) == (one == other)
    assert equivalent(f"{one:,}", str(one))
    assert not equivalent(str(one), str(one + 1))


@FUZZED
@given(fractions.filter(bool), st.sampled_from([-2e-6, -5e-7, 0, 1e-9, 5e-7, 2e-6, 1]))
def test_strict_tolerance_is_a_millionth_of_the_gold(gold, relative):
    answer = gold * (1 + Fraction(str(relative)))
    both_integers = answer.denominator == gold.denominator == 1
    expected = answer == gold if both_integers else abs(relative) < 1e-6
    assert equivalent(as_fraction(answer), as_fraction(gold)) == expected


@FUZZED
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=5, unique=True), st.randoms(use_true_random=False))
def test_order_counts_in_tuples_and_not_in_sets(entries, rng):
    mixed = rng.sample(entries, len(entries))
    one, other = (", ".join(map(str, each)) for each in (entries, mixed))
    assert equivalent(rf"\{{{one}\}}", rf"\{{{other}\}}")
    assert equivalent(f"({one})", f"({other})") == (entries == mixed)


@pytest.mark.parametrize(("places", "near"), [(2, False), (4, False), (6, True), (9, True)])
def test_pi_cut_off(places, near):
    assert equivalent(f"{math.pi:.{places}f}", r"\pi") == near
