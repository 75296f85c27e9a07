"""`mmreason prefilter` on a real policy and real images: one process, again, and two processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from chat_stub import Handler, chat_stub
from datasets import Dataset
from processes import free_port
from support import drawn_rows, full_but

from trl_mmreason.cli.main import main
from trl_mmreason.data.row_loading import load_rows
from trl_mmreason.jobs.store import Store

RULE = {"adapo": [], **{rule: ["--rule", rule, "--low", "0", "--high", "0.5"] for rule in ("share", "srpo")}}
STAGE = {"adapo": "adapo-prefilter", "share": "difficulty", "srpo": "difficulty"}


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("questions") / "questions.parquet"
    Dataset.from_list(drawn_rows(9)).to_parquet(path)
    return path


def arguments(questions, output, model, rule):
    fixed = ["--model", model, "--n", "2", "--max-new-tokens", "5", "--seed", "1"]
    return ["prefilter", str(questions), str(output), *fixed, *RULE[rule]]


def accelerate_launch(*command):
    """What two processes print that are started as users start them."""
    launcher = [str(Path(sys.executable).with_name("accelerate")), "launch", "--multi_gpu", "--num_processes", "2"]
    launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = subprocess.run(
        [*launcher, "--main_process_port", "0", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def records(output, rule):
    with Store(f"{output}.sqlite") as store:
        return list(store.records(STAGE[rule]))


@pytest.mark.parametrize("rule", full_but("srpo", ["share", "srpo"]))
def test_prefilter(checkpoints, questions, tmp_path, rule, capsys):
    model, output = checkpoints("qwen2_5_vl"), tmp_path / "kept.parquet"
    main(arguments(questions, output, model, rule))
    said = capsys.readouterr().out
    first = records(output, rule)
    assert len(first) == 18
    assert all(record.status == "done" for record in first)
    rows = load_rows(output).dataset
    assert f"kept {len(rows)} of 9" in said
    assert said.endswith(
        f"\nNext: mmreason new {'srpo' if rule == 'srpo' else 'adapo'} --model MODEL --data {output}\n"
    )
    assert {len(row["images"]) for row in rows} == {0, 1, 2}
    assert {message["role"] for row in rows for message in row["prompt"]} == {"user"}
    if rule == "srpo":
        return  # what follows is the same for all rules

    main(arguments(questions, output, model, rule))
    assert capsys.readouterr().out == said  # all is there already
    assert records(output, rule) == first

    together = tmp_path / "together.parquet"
    launched = accelerate_launch("-m", "trl_mmreason.cli.main", *arguments(questions, together, model, rule))
    assert f"kept {len(rows)} of 9" in launched
    assert records(together, rule) == first


def test_to_keep_nothing_is_an_error(checkpoints, questions, tmp_path):
    """An untrained policy is hardly ever right."""
    output = tmp_path / "kept.parquet"
    with pytest.raises(SystemExit, match="mmreason prefilter: no row was made; OUTPUT is not written\n.* of 9"):
        main(arguments(questions, output, checkpoints("qwen2_5_vl"), "adapo"))
    assert not output.exists()
    assert len(records(output, "adapo")) == 18


@pytest.mark.full
def test_a_server_that_is_not_there_is_said_at_once(questions, tmp_path):
    output = tmp_path / "kept.parquet"
    nobody = ["--server", f"http://127.0.0.1:{free_port()}/v1"]
    with pytest.raises(SystemExit, match=r"^mmreason prefilter: Nothing answers at .*Start the server"):
        main([*arguments(questions, output, "policy", "share"), *nobody])
    assert not list(tmp_path.iterdir())  # no store, either


@pytest.mark.full
def test_a_run_begins_if_one_of_its_servers_answers(questions, tmp_path, capsys):
    output = tmp_path / "kept.parquet"
    command = [*arguments(questions, output, "policy", "share"), "--low", "0", "--high", "1"]
    with chat_stub() as server:
        main([*command, "--server", f"http://127.0.0.1:{free_port()}/v1", "--server", server.url])
    assert "kept 9 of 9" in capsys.readouterr().out


class WithoutModel(Handler):
    def answer(self, body):
        self.reply(404, {"error": {"message": "no such model"}})


@pytest.mark.full
def test_a_first_try_that_failed_does_not_block_the_corrected_one(questions, tmp_path):
    """Neither its settings nor its questions count, as nothing was answered."""
    output = tmp_path / "kept.parquet"
    with chat_stub(WithoutModel) as server, pytest.raises(SystemExit, match="There is no model 'wrong'"):
        main([*arguments(questions, output, "wrong", "share"), "--server", server.url])
    corrected = tmp_path / questions.name
    Dataset.from_list([{**row, "answer": f"{row['answer']}0"} for row in drawn_rows(9)]).to_parquet(corrected)
    with chat_stub() as server:
        command = [*arguments(corrected, output, "right", "share"), "--server", server.url]
        main([*command, "--high", "1", "--temperature", "0.5"])
    with Store(f"{output}.sqlite") as store:
        assert store.stages()["difficulty"]["engine"]["model"] == "right"
        assert len(store.finished("difficulty")) == 18


@pytest.mark.parametrize("served", [False, True])
def test_the_chat_template_gets_its_arguments(checkpoints, questions, tmp_path, served):
    """As in training, where they are `chat_template_kwargs`; a server gets them with each call."""
    tone, output = {"tone": "Kindly"}, tmp_path / "kept.parquet"
    command = [*arguments(questions, output, checkpoints("qwen2_5_vl"), "share"), "--high", "1"]
    with chat_stub() as server:
        main([*command, "--chat-template-kwargs", json.dumps(tone), *(["--server", server.url] if served else [])])
    with Store(f"{output}.sqlite") as store:
        engine = store.stages()[STAGE["share"]]["engine"]
    assert (engine["extra_body"] if served else engine)["chat_template_kwargs"] == tone
    assert all(body["chat_template_kwargs"] == tone for body in server.bodies)
    assert bool(server.bodies) == served
