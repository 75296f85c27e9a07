"""Train a model with one of the methods.

Train a model with one of the methods, and evaluate it before and after:

example: mmreason train adapo --config adapo/miniature.yaml --output_dir runs/quickstart
"""

from __future__ import annotations

import argparse
import sys

from ...evaluation.methods import METHODS
from ...scripts.recipes import ROOT, config_file, load_script

SCRIPTS = {
    **METHODS,
    "grpo": "plain GRPO, a baseline",
    "score": "SCoRe, a baseline of AdaPO",
    "sft": "plain supervised training, a baseline",
    "reflection_sft": "the cold start of SRPO by itself",
}


def add(command: argparse.ArgumentParser) -> None:
    """Declare the arguments, and write the help as it is to be shown, with the list of methods."""
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.usage = "mmreason train METHOD [--config FILE] [--NAME VALUE …]"
    methods = "\n".join(f"  {name:15} {text}" for name, text in SCRIPTS.items())
    command.description = f"{command.description}\n\n{methods}"
    command.epilog = f"""\
mmreason train METHOD --help shows the arguments of a method that one sets first, --help-all all of them.
--config takes a file of your own, or the name of one of the recipes in {ROOT / "configs"}
such as adapo/miniature.yaml; copy METHOD/your_model.yaml for your own model and data.

examples:
{str(command.epilog).replace("example:", " ")}
  accelerate launch -m trl_mmreason.cli.main train adapo --config adapo/qwen2_5_vl_7b.yaml     (all GPUs)"""
    command.add_argument("method", nargs="?", choices=SCRIPTS, metavar="METHOD", help="one of the names above")
    command.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="arguments of the method")
    command.set_defaults(show_help=command.print_help)


def run(arguments: argparse.Namespace) -> None:
    """Run the method's script."""
    if arguments.method is None:
        arguments.show_help(sys.stderr)
        sys.exit(2)
    # A --config that does not exist is refused before the script's imports, which take seconds.
    parser = argparse.ArgumentParser(prog=f"mmreason train {arguments.method}", add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    name = parser.parse_known_args(arguments.arguments)[0].config
    try:
        if name is not None:
            config_file(name)
    except FileNotFoundError as error:
        sys.stderr.write(f"{parser.prog}: error: {error}\n")
        sys.exit(2)
    # As `python examples/….py` would run it; `runpy` would put the path into sys.argv, which --help and reports show.
    sys.argv = [parser.prog, *arguments.arguments]
    load_script(arguments.method, "__main__")
