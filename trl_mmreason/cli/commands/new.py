"""Write a recipe for your own model and data.

Copy METHOD/your_model.yaml with your model, your questions and your columns in it, check that training takes the file
and that the rows can be read, and print the two commands to run next. Nothing is trained. METHOD is adapo, srpo,
chain_of_step, sophia, self_evolution or reflection_sft.

example: mmreason new adapo --data my.jsonl --model Qwen/Qwen2.5-VL-3B-Instruct
"""

from __future__ import annotations

import json
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from ...scripts.recipes import ROOT
from ...scripts.refusals import WrongArgument
from . import parsers

METHODS = ("adapo", "srpo", "chain_of_step", "sophia", "self_evolution", "reflection_sft")
_LINE = re.compile(r"(?P<name>[a-z_]+): *(?P<value>'[^']*'|\S+)(?P<comment>\s+#.*)?")
_TO_FILL_IN = re.compile(r"(?P<name>[a-z_]+):.*# <- (?P<what>.*)")


def add(command: ArgumentParser) -> None:
    add = command.add_argument
    add("method", choices=METHODS, metavar="METHOD", help=f"one of {', '.join(METHODS)}")
    add("--data", required=True, metavar="SOURCE", help="rows to train on: Hub id, local file or folder")
    add("--eval-data", metavar="SOURCE", help="other rows, to compare on before and after; without them nothing is")
    add("--model", required=True, help="path or Hub id of the policy")
    add("--columns", type=parsers.json_object, help='our column names → the source\'s, as JSON: {"answer": "solution"}')
    add("--image-root", help="base folder of relative image paths; by default the file's")
    add("--split", default="train", help="split of --data to read")
    add("--eval-split", default="train", help="split of --eval-data to read; a file has only train")
    add("--output", type=Path, help="file to write; by default METHOD-mine.yaml")


def run(arguments: Namespace) -> None:
    from ...data.row_loading import load_completions, load_rows
    from ..doctor import settings

    output = arguments.output or Path(f"{arguments.method}-mine.yaml")
    if output.exists():
        raise WrongArgument(f"{output} exists. Fix: another --output")
    if not output.parent.is_dir():
        raise WrongArgument(f"--output {output}: there is no folder {output.parent}")
    lines = []
    for source, split in ((arguments.data, arguments.split), (arguments.eval_data, arguments.eval_split)):
        if source is None:
            continue
        reading = {"split": split, "columns": arguments.columns, "image_root": arguments.image_root}
        if arguments.method == "reflection_sft":
            lines.append(f"{source}: {len(load_completions(source, **reading))} rows can be used")
        else:
            from ...evaluation.rows_page import counts_line

            lines.append(counts_line(load_rows(source, **reading), source))
    recipe = recipe_text(arguments.method, _settings(arguments))
    output.write_text(recipe, encoding="utf-8")
    parser, findings = settings.check_method(str(output), (arguments.method,))
    findings += settings.check_policy(arguments.model)
    if parser is not None:
        findings += settings.check_files(settings.read_settings(str(output), parser.configs)[0], parser.reads)
    left = [f"{one['name']}: {one['what']}" for one in map(_TO_FILL_IN.match, recipe.splitlines()) if one]
    lines += [str(finding) for finding in findings]
    lines += [f"Still to fill in, in {output}:", *(f"  {one}" for one in left)] if left else []
    if not arguments.eval_data:
        lines.append("Nothing is compared before and after training without --eval-data.")
    lines += [
        f"Wrote {output}. Next:",
        f"  mmreason doctor --config {shlex.quote(str(output))} --method {arguments.method}",
        f"  mmreason train {arguments.method} --config {shlex.quote(str(output))}",
    ]
    print("\n".join(lines))  # noqa: T201 - what the command is asked for
    if any(finding.level == "FAIL" for finding in findings):
        raise WrongArgument(f"training will not take {output} as it is; see the lines that begin with FAIL")


def _settings(arguments: Namespace) -> dict[str, Any]:
    """The settings of the recipe that the command line decides."""
    name = arguments.method.replace("_", "-")
    is_compared = arguments.eval_data is not None
    supervised = {} if is_compared else {"eval_strategy": "no", "eval_on_start": False}
    return {
        "model_name_or_path": arguments.model,
        "dataset_name": arguments.data,
        "dataset_split": arguments.split,
        "eval_dataset_name": arguments.eval_data,
        "eval_split": arguments.eval_split,
        "columns": arguments.columns,
        "image_root": arguments.image_root,
        "output_dir": f"runs/{name}-{Path(arguments.data).stem}",
        **(supervised if arguments.method == "reflection_sft" else {}),
    }


def recipe_text(method: str, given: Mapping[str, Any]) -> str:
    """The method's `your_model.yaml` with these settings in the place of its own, which keep their comments.

    Settings of None that it does not have are left out; others that it does not have follow `dataset_name`.
    """
    text = (ROOT / f"configs/{method}/your_model.yaml").read_text(encoding="utf-8")
    template = text.splitlines()
    own = {match["name"] for line in template if (match := _LINE.fullmatch(line))}
    further = [f"{name}: {_yaml(value)}" for name, value in given.items() if name not in own and value is not None]
    written = []
    for line in template:
        match = _LINE.fullmatch(line)
        if match and match["name"] in given:
            comment = (match["comment"] or "").replace("# <- ", "# ")
            line = f"{match['name']}: {_yaml(given[match['name']])}{comment}"
        written.append(line)
        if match and match["name"] == "dataset_name":
            written += further
    return "\n".join(written) + "\n"


def _yaml(value: Any) -> str:
    """A value in one line of YAML, of which JSON is a part."""
    with suppress(ValueError):  # YAML's, of what begins as a date, such as 2026-02-30
        if isinstance(value, str) and re.fullmatch(r"[\w./:-]*[\w./-]", value) and yaml.safe_load(value) == value:
            return value
    return json.dumps(value, ensure_ascii=False)
