"""docs/ten-minutes.md: its files and commands, from the first to the last, with fewer receipts and steps."""

import json
import re
import shlex
import sys

import pytest
from example_runs import ROOT
from pages import page_of

from trl_mmreason.cli.main import main

PAGE = (ROOT / "docs/ten-minutes.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(python|yaml|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A random policy earns nothing, which is an error of training with a learning rate.
SMALLER = {'"train", 240': '"train", 8', '"test", 60': '"test", 2', '"demo"': '"test"'}
SMALLER |= {"max_steps: 350": "max_steps: 2", "logging_steps: 5\n": "logging_steps: 1\n"}
SMALLER |= {"max_steps: 60": "max_steps: 2", "size: 128": "size: 16", "3.0e-4": "0", "size: 32": "size: 4"}
SMALLER |= {"_steps 10 --save_steps 10": "_steps 1 --save_steps 1", "eval_rows 32": "eval_rows 8"}


def smaller(text, left):
    for usual in [usual for usual in left if usual in text]:
        text = text.replace(usual, left.pop(usual))
    return text


@pytest.mark.full
@pytest.mark.usefixtures("own_cache")
def test_files_and_commands_of_the_page_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", sys.argv)  # of `mmreason train` a script, which takes the place of the main module
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    left = dict(SMALLER)
    for kind, block in BLOCK.findall(PAGE):
        text = smaller(block, left)
        if kind == "bash":
            for line in text.splitlines():
                program, *arguments = shlex.split(line)
                if program == "python":
                    exec(compile((tmp_path / arguments[0]).read_text(), arguments[0], "exec"), {})
                else:
                    assert program == "mmreason"
                    main(arguments)
        else:
            (tmp_path / text.partition("\n")[0].removeprefix("# ")).write_text(text)
    assert not left  # all of them occurred
    said = capsys.readouterr().out
    assert "receipts/train.jsonl: 32 of 34 rows can be used" in said  # four questions a receipt, and two broken rows
    assert json.loads((tmp_path / "runs/start/trainer_state.json").read_text())["global_step"] == 2
    assert "8 questions" in page_of(tmp_path / "runs/adapo/report.html").elements[0]["text"]
    logged = json.loads((tmp_path / "runs/second/trainer_state.json").read_text())["log_history"]
    assert any("rewards/with_currency/mean" in entry for entry in logged)
    assert any("eval_new_acc_t2" in entry for entry in logged)
    assert (tmp_path / "real.yaml").exists()


def test_the_page_shows_the_message_that_names_the_fields(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "receipts").mkdir()
    (tmp_path / "receipts/train.jsonl").write_text(re.search(r"```json\n(.*?\n)```", PAGE, re.DOTALL)[1])
    with pytest.raises(SystemExit) as refused:
        main(["rows", "receipts/train.jsonl"])
    shown = re.search(r"```\n(mmreason rows: .*?), …\n```", PAGE, re.DOTALL)[1]
    assert str(refused.value).startswith(" ".join(shown.split()))
