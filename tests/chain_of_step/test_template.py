"""The step template: reading and writing are inverse, and a fault is named with its place."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solution_chains import chain_of_steps, prefixes

from trl_mmreason.chain_of_step.template import (
    SPECIAL_TOKENS,
    Chain,
    ChainError,
    Step,
    chain_ends,
    has_token,
    parse_chain,
    render_chain,
)
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import make_problems

FIRST = (
    "<|reasoning_step_start|>"
    "<|reasoning_step_name_start|>Look<|reasoning_step_name_end|>"
    "<|reasoning_step_thought_start|>I see 3 and 4.<|reasoning_step_thought_end|>"
    "<|reasoning_step_reflection_start|>Yes.<|reasoning_step_reflection_end|>"
    "<|reasoning_step_end|>"
)
SECOND = FIRST.replace("Look", "Add").replace("I see 3 and 4.", "3+4=7")
PARTIAL = f"<|reasoning_start|>{FIRST}<|reasoning_proceed|>{SECOND}"
WHOLE = f"{PARTIAL}<|reasoning_end|><|answer_start|>7<|answer_end|>"
STEPS = [Step("Look", "I see 3 and 4.", "Yes."), Step("Add", "3+4=7", "Yes.")]

# Pieces of tokens, line ends and odd spaces, next to any character at all.
pieces = st.text(max_size=8) | st.sampled_from(["<|", "|>", "<|answer_end|", "answer_start|>", "\r\n", " ", "\x1c"])
texts = st.lists(pieces).map("".join).filter(lambda text: not has_token(text))
chains = st.builds(Chain, st.lists(st.builds(Step, texts, texts, texts), min_size=1, max_size=4), st.none() | texts)


def test_thirteen_tokens_in_the_order_of_table_6():
    assert len(set(SPECIAL_TOKENS)) == 13
    assert SPECIAL_TOKENS[0] == "<|reasoning_start|>"
    assert SPECIAL_TOKENS[6:8] == ("<|reasoning_step_thought_start|>", "<|reasoning_step_thought_end|>")
    assert SPECIAL_TOKENS[10:] == ("<|reasoning_proceed|>", "<|answer_start|>", "<|answer_end|>")


def test_a_whole_chain():
    assert parse_chain(WHOLE) == Chain(STEPS, "7")
    assert render_chain(Chain(STEPS, "7")) == WHOLE


@pytest.mark.parametrize("tail", ["", "<|reasoning_proceed|>", "<|reasoning_end|>", "\n", "\n<|reasoning_end|>\n"])
def test_a_chain_that_ends_behind_a_step_is_partial(tail):
    assert parse_chain(PARTIAL + tail) == Chain(STEPS)
    assert render_chain(Chain(STEPS)) == PARTIAL


def test_the_layout_of_fig_7_with_a_line_for_each_token():
    figure = WHOLE.replace("|><|", "|>\n<|")
    assert parse_chain(f" {figure}\n") == Chain(STEPS, "7")
    assert render_chain(parse_chain(figure)) == WHOLE


@given(chains)
def test_parse_undoes_render(chain):
    text = render_chain(chain)
    assert parse_chain(text) == chain
    assert render_chain(parse_chain(text)) == text


@given(chains)
def test_every_prefix_is_the_chain_cut_behind_a_step(chain):
    text = render_chain(chain)
    for number, prefix in enumerate(prefixes(chain), start=1):
        assert text.startswith(prefix)
        assert parse_chain(prefix) == Chain(chain.steps[:number])
    assert len(prefixes(chain)) == len(chain.steps)


def test_prefixes_go_on_to_the_same_chain():
    first, second = prefixes(Chain(STEPS, "7"))
    assert first == f"<|reasoning_start|>{FIRST}"
    assert second == PARTIAL
    assert parse_chain(f"{first}<|reasoning_proceed|>{SECOND}") == Chain(STEPS)


def test_where_steps_and_answer_end():
    spaced = WHOLE.replace("<|reasoning_proceed|>", "\n<|reasoning_proceed|>\n") + "\n"
    for text, answer_end in ((WHOLE, len(WHOLE)), (spaced, len(spaced) - 1), (PARTIAL, None)):
        ends = chain_ends(text)
        assert [text[:end].count("<|reasoning_step_end|>") for end in ends.steps] == [1, 2]
        assert all(text[:end].endswith("<|reasoning_step_end|>") for end in ends.steps)
        assert ends.answer == answer_end


@pytest.mark.parametrize("category", ["adding", "clock", "lengths"])
def test_the_miniatures_solutions_are_chains(category):
    for problem in make_problems([category], 8, seed=0):
        solution = solve(problem)
        chain = parse_chain(chain_of_steps(solution))
        written = [(step.name, step.thought, step.reflection) for step in solution.steps]
        assert [(step.name, step.thought, step.reflection) for step in chain.steps] == written
        assert chain.answer == solution.answer
        assert render_chain(chain) == chain_of_steps(solution)


START, NEXT = "<|reasoning_start|>", "<|reasoning_proceed|> or <|reasoning_end|>"
CUT = PARTIAL.index("3+4") + 3

# text, where it stops being a chain, what was expected, what was found
FAULTS = [
    ("", 0, START, "the end of the text"),
    ("The answer is 7.", 0, START, "'The answer is 7.'"),
    (f"Well. {WHOLE}", 0, START, "'Well. '"),
    (f"{START} \n", 21, "<|reasoning_step_start|>", "the end of the text"),
    # no step at all
    (f"{START}<|reasoning_end|><|answer_start|>7<|answer_end|>", 19, "<|reasoning_step_start|>", "<|reasoning_end|>"),
    # a step without a reflection
    (
        PARTIAL.replace("<|reasoning_step_reflection_start|>Yes.<|reasoning_step_reflection_end|>", ""),
        PARTIAL.index("<|reasoning_step_reflection_start|>"),
        "<|reasoning_step_reflection_start|>",
        "<|reasoning_step_end|>",
    ),
    # cut within a thought
    (PARTIAL[:CUT], CUT, "<|reasoning_step_thought_end|>", "the end of the text"),
    # cut within a token, which then is plain text
    (PARTIAL[:-2], len(PARTIAL) - len("<|reasoning_step_end|>"), "<|reasoning_step_end|>", "'<|reasoning_step_end'"),
    (f"{START}{FIRST}{SECOND}", 19 + len(FIRST), NEXT, "<|reasoning_step_start|>"),
    (f"{PARTIAL} so", len(PARTIAL) + 1, NEXT, "'so'"),
    (f"{PARTIAL}<|reasoning_end|>7", len(PARTIAL) + 17, "<|answer_start|>", "'7'"),
    (f"{PARTIAL}<|reasoning_end|><|answer_start|>7", len(WHOLE) - 14, "<|answer_end|>", "the end of the text"),
    (f"{WHOLE} 7", len(WHOLE) + 1, "the end of the text", "'7'"),
    (f"{WHOLE}<|answer_end|>", len(WHOLE), "the end of the text", "<|answer_end|>"),
]


@pytest.mark.parametrize(("text", "position", "expected", "found"), FAULTS)
def test_a_fault_is_named_with_its_place(text, position, expected, found):
    with pytest.raises(ChainError) as caught:
        parse_chain(text)
    assert (caught.value.position, caught.value.expected) == (position, expected)
    assert str(caught.value) == f"malformed chain at character {position}: expected {expected}, found {found}"
    with pytest.raises(ChainError):
        chain_ends(text)


@pytest.mark.parametrize("part", ["name", "thought", "reflection"])
def test_a_token_within_a_text_is_refused(part):
    step = Step(**{"name": "a", "thought": "b", "reflection": "c", part: "so <|reasoning_step_end|>"})
    with pytest.raises(ValueError, match=rf"<\|reasoning_step_end\|> is in the text of the {part}"):
        render_chain(Chain([step]))


def test_a_token_within_the_answer_and_a_chain_without_steps_are_refused():
    with pytest.raises(ValueError, match="text of the answer"):
        render_chain(Chain(STEPS, "7<|answer_end|>"))
    with pytest.raises(ValueError, match="no step"):
        render_chain(Chain([], "7"))


@pytest.mark.parametrize("piece", [*SPECIAL_TOKENS, FIRST, f"{FIRST}<|reasoning_proceed|>", " ", "<", "<|", "a"])
def test_a_megabyte_of_anything_is_read_in_linear_time(piece):
    opened = f"<|reasoning_start|>{FIRST}<|reasoning_proceed|>"
    started = time.process_time()
    for opening in ("", opened, opened.removesuffix("<|reasoning_proceed|>")):
        text = opening + piece * (1_000_000 // len(piece))
        try:
            chain = parse_chain(text)
        except ChainError:
            continue
        assert len(chain.steps) == text.count("<|reasoning_step_end|>")
    assert time.process_time() - started < 5
