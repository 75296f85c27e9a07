"""Help on the command line comes from docstrings, which describe exactly the fields."""

from dataclasses import dataclass, field, fields

import pytest
from transformers import HfArgumentParser
from trl import GRPOConfig, TrlParser

import trl_mmreason
from study.running import StudyArguments
from trl_mmreason import AdaPOConfig
from trl_mmreason.baselines.sft import PlainSFTConfig
from trl_mmreason.baselines.two_turns import FixedRewardsConfig, SCoReConfig
from trl_mmreason.scripts.sections import StagedArguments
from trl_mmreason.scripts.single_stage import CompletionArguments
from trl_mmreason.training.documented import documented


def helps(cls):
    return {entry.name: entry.metadata.get("help") for entry in fields(cls)}


def shown(cls, parser=HfArgumentParser):
    """The help on the command line, in one line."""
    return " ".join(parser(cls).format_help().split())


@documented
@dataclass
class Oven:
    """How to bake.

    Prose in front of it.

    Attributes:
        heat: in °C: 100 % is 250,
            the most there is.

            Less is for meringue.
        top, bottom: whether to heat from there.
        timer:
            minutes.

    Raises:
        nothing: this is another section.
    """

    timer: int
    heat: float = field(default=200.0, metadata={"aliases": ["-t"], "help": "replaced"})
    top: bool = False
    bottom: bool = True


def test_entries_become_the_help():
    both = "whether to heat from there."
    heat = "in °C: 100 %% is 250, the most there is. Less is for meringue."
    assert helps(Oven) == {"timer": "minutes.", "heat": heat, "top": both, "bottom": both}
    assert Oven(5) == Oven(timer=5, heat=200.0, top=False, bottom=True)


def test_the_command_line_shows_percent_signs_and_keeps_other_metadata():
    text = shown(Oven)
    assert "in °C: 100 % is 250, the most there is. Less is for meringue. (default: 200.0)" in text
    (oven,) = HfArgumentParser(Oven).parse_args_into_dataclasses(["--timer", "5", "-t", "180"])
    assert oven.heat == 180


@pytest.mark.parametrize("parser", [HfArgumentParser, TrlParser])
def test_the_command_line_shows_what_the_docstring_says_of_adapo(parser):
    text = shown(AdaPOConfig, parser)
    assert "θ, the error rate above which a question is in the correction state" in text
    assert "user message after the first answer; `None` trains one turn, whose answer then counts as both" in text


CONFIGS = [getattr(trl_mmreason, name) for name in trl_mmreason.__all__ if name.endswith("Config")]
CONFIGS += [FixedRewardsConfig, PlainSFTConfig, SCoReConfig]
ARGUMENTS = [CompletionArguments, StagedArguments, StudyArguments]


@pytest.mark.parametrize("cls", CONFIGS + ARGUMENTS)
def test_the_command_line_describes_every_argument(cls):
    assert [name for name, text in helps(cls).items() if not text] == []
    text = shown(cls)
    assert [name for name in helps(cls) if f"--{name}" not in text] == []


def test_a_subclass_describes_its_own_fields_and_may_describe_others():
    @documented
    @dataclass
    class Grill(Oven):
        """An oven.

        Attributes:
            rack: height of the rack.
            bottom: off, on a grill.
            top: heats the grill.
        """

        rack: int = 2
        bottom: bool = False

    own = {"rack": "height of the rack.", "bottom": "off, on a grill.", "top": "heats the grill."}
    assert helps(Grill) == helps(Oven) | own
    assert helps(Oven)["top"] == "whether to heat from there."  # that of the parent is another field
    assert helps(AdaPOConfig)["max_steps"] == helps(GRPOConfig)["max_steps"]
    assert helps(AdaPOConfig)["top_p"] != helps(GRPOConfig)["top_p"]


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("rack: height.", "has no entry for: light"),
        ("rack: height.\n    light:", "has no entry for: light"),
        ("rack: height.\n    light: on.\n    lamp: on.", "describes what is no field: lamp"),
        ("rack: height.\n    a lamp\n    light: on.", "describes what is no field: a lamp"),
        ("rack, lite: both.", "has no entry for: light and describes what is no field: lite"),
        ("rack: height.\n\nlight: on.", "has no entry for: light"),
    ],
)
def test_a_docstring_that_differs_from_the_fields_is_refused(section, problem):
    class Grill(Oven):
        __doc__ = f"A grill.\n\nAttributes:\n    {section}"
        rack: int = 2
        light: bool = True

    with pytest.raises(ValueError, match=f"^Grill: the section 'Attributes:' of its docstring {problem}. Fix: "):
        documented(dataclass(Grill))


def test_a_class_without_docstring_is_refused():
    @dataclass
    class Bare:
        light: bool = True

    with pytest.raises(ValueError, match="Bare: .* has no entry for: light"):
        documented(Bare)
