"""Texts that may be in a file: a path that does not exist is an error, and a text is never refused."""

import shlex

import pytest

from trl_mmreason import AdaPOConfig, SelfEvolutionConfig, SRPOConfig
from trl_mmreason.cli.main import main
from trl_mmreason.scripts.single_stage import DataArguments
from trl_mmreason.scripts.system_prompts import read_optional_text, read_system_prompt
from trl_mmreason.sophia.recipe import SophiaArguments

LOST = [
    *("lost.txt", "prompts/lost.md", "lost.jinja", "./lost", "../lost", "/lost/prompt", "~/lost.txt", "prompts/lost"),
    *("C:\\prompts\\lost.txt", "提示/系统.txt", "/my prompts/lost one.txt", "runs/prompts/", "a/b/c", "lost.yaml"),
]
TEXTS = [
    *(
        "Think.",
        "/think",
        "/no_think",
        "/no_think Answer with true/false, and write it to out.txt",
        "思考/回答",
        "think",
    ),
    *(
        "Write your answer to result.txt",
        "Use a/b/c.",
        "<think>a</think>",
        "a\n/b/c.txt",
        r"\boxed{7}",
        "yes, and/or no",
    ),
    *(
        "yes, and/or no",
        "思考/回答",
        "~ 3 words at most",
        "/help me",
        "请一步一步思考。回答/解释",
        "{question}/{answer}",
        "Antwort:",
        "x" * 5000,
    ),
]


@pytest.mark.parametrize("text", LOST)
def test_a_path_that_does_not_exist_is_never_the_text(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for read in (read_optional_text, read_system_prompt):
        with pytest.raises(ValueError, match="there is no such file .* Fix the path; if this is the text itself"):
            read("system_prompt", text)


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_never_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_optional_text("followup", text) == read_system_prompt("system_prompt", text) == text


def test_a_word_close_to_the_name_of_a_prompt_is_refused():
    with pytest.raises(ValueError, match="sohpia: there is no system prompt of that name; did you mean `so"):
        read_system_prompt("system_prompt", "sohpia")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"^system_prompt .*/prompt.txt: 'utf-8' codec can't decode"):
        read_optional_text("system_prompt", str(tmp_path / "prompt.txt"))


CPU = {"use_cpu": True, "bf16": False}
SETTINGS = {
    "system_prompt": lambda text: DataArguments("x", system_prompt=text).system_prompt,
    "eval_system_prompt": lambda text: DataArguments("x", eval_system_prompt=text).eval_system_prompt,
    "evaluation_prompt": lambda text: AdaPOConfig("x", **CPU, evaluation_prompt=text).evaluation_prompt,
    "reflection_prompt": lambda text: SRPOConfig("x", **CPU, reflection_prompt=text).reflection_prompt,
    "actor_prompt": lambda text: SelfEvolutionConfig("x", **CPU, actor_prompt=text).actor_prompt,
    "judge_prompt": lambda text: SelfEvolutionConfig("x", **CPU, judge_prompt=text).judge_prompt,
    "thinking_prompt": lambda text: SophiaArguments("x", thinking_prompt=text).thinking_prompt,
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_prompt_of_a_configuration_may_be_in_a_file(name, tmp_path):
    (tmp_path / "prompt.txt").write_text("Look again.\n", encoding="utf-8")
    assert SETTINGS[name](str(tmp_path / "prompt.txt")) == "Look again."
    assert SETTINGS[name]("Look.") == "Look."
    with pytest.raises(ValueError, match=rf"{name} prompts/lost.txt: there is no such file"):
        SETTINGS[name]("prompts/lost.txt")


@pytest.mark.parametrize(
    "command",
    [
        *(f"evaluate x --{option} lost.txt" for option in ("followup", "prompt-template", "instruction")),
        "reflect x y --cot-prompt lost.txt",
        "revise x y --followup lost.txt",
        *(f"trajectories x y --{option} lost.txt" for option in ("caption-prompt", "thinking-prompt")),
    ],
)
def test_every_prompt_of_a_command_may_be_in_a_file(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    assert ended.value.code == 2
    option = command.split()[-2]
    assert f"error: argument {option}: lost.txt: there is no such file" in capsys.readouterr().err
