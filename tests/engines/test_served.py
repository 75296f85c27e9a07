"""Every command that takes a server, against a real `vllm serve`; and `mmreason evaluate --vllm`.

One tiny model plays all parties (`taught_parties.py`). Commands are done again with nobody at the address: what asked
anything would fail.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import rows_of
from datasets import Dataset
from processes import serving
from support import drawn_rows
from taught_parties import CAPTION_PROMPT, FEWEST_STEPS, MOST_STEPS, questions, save_parties, save_scorer

from trl_mmreason.cli.main import main
from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.generation import Request, SamplingParams
from trl_mmreason.generation.server_engine import ServerEngine
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.jobs.store import Store
from trl_mmreason.srpo.prompts import COT_PROMPT

pytest.importorskip("vllm")

NOBODY = "http://127.0.0.1:9/v1"  # a port where nothing listens
MODEL_TOKENS = 2048
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
if not torch.cuda.is_available():
    ENVIRONMENT["TORCH_COMPILE_DISABLE"] = "1"  # vLLM reads it; compiling takes half a minute


@pytest.fixture(scope="module")
def parties(tmp_path_factory):
    """Folder of the model."""
    folder = tmp_path_factory.mktemp("parties")
    save_parties(folder)
    return str(folder)


@pytest.fixture(scope="module")
def url(parties, tmp_path_factory):
    """Address of `vllm serve`, as the documentation starts it, in float32 as the comparison needs it."""
    command = [Path(sys.executable).with_name("vllm"), "serve", parties, "--served-model-name", "parties"]
    command += ["--dtype", "float32", "--max-model-len", MODEL_TOKENS, "--enforce-eager"]
    with serving(command, tmp_path_factory.mktemp("served") / "log.txt", "/health", ENVIRONMENT) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def scorer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer")
    save_scorer(folder)
    return str(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "test.parquet"
    Dataset.from_list(questions()).to_parquet(path)
    return str(path)


def do_twice(capsys, url, *command):
    """Run a command, then again when nobody answers; gives what it printed, both times."""
    said = []
    for server in (url, NOBODY):
        main([str(word).replace("URL", server) for word in command])
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    return said[0]


def units(store):
    """Stage → units that are done, but for those that remember questions and for verdicts."""
    with Store(store) as opened:
        return {
            stage: sum(record.status == "done" for record in opened.records(stage))
            for stage in opened.stages()
            if not stage.endswith("questions") and "verdicts-" not in stage
        }


POLICY = ["--model", "parties", "--server", "URL", "--batch-size", "4"]


def test_greedy_answers_are_those_of_transformers(url, parties, data, tmp_path, capsys):
    """Two turns of each question, the second image's among them."""
    asked = ["--protocol", "two-turn", "--max-new-tokens", "24", "--batch-size", "4"]
    do_twice(capsys, url, "evaluate", f"own={data}", *POLICY, *asked, "--output", tmp_path / "there")
    main(["evaluate", f"own={data}", "--model", parties, *asked, "--output", str(tmp_path / "here")])
    there, here = (texts_of(tmp_path / place / "own") for place in ("there", "here"))
    assert there == here
    assert len(there) == 2
    assert all(there)


def texts_of(folder):
    samples = [json.loads(line) for line in (folder / "samples.jsonl").open()]
    return [[turn["text"] for turn in sample["turns"]] for sample in samples]


def test_log_probabilities_and_ids_are_those_of_transformers(url, parties):
    requests = [Request(row["prompt"], row["images"], prefix=prefix) for row in drawn_rows(6) for prefix in ("", "So")]
    sampling_params = SamplingParams(max_new_tokens=8, temperature=0, logprobs=True)
    there = ServerEngine("parties", url, concurrency=4, extra_body={"return_token_ids": True}).sample(
        requests, sampling_params
    )
    here = TransformersEngine(parties).sample(requests, sampling_params)
    for [mine], [theirs] in zip(here, there, strict=True):
        assert (theirs.text, theirs.finish_reason) == (mine.text, mine.finish_reason)
        assert theirs.token_ids == mine.token_ids
        assert theirs.logprobs == pytest.approx(mine.logprobs, abs=1e-3)


def test_no_placeholder_is_sampled(url, parties):
    """Without suppression some come: in this model they are as likely as digits."""
    from transformers import AutoConfig

    placeholders = set(placeholder_ids(AutoConfig.from_pretrained(parties)))
    assert len(placeholders) == 4  # of images and videos, and the marks around them
    requests = [Request(row["prompt"], row["images"], n=4, seed=k) for k, row in enumerate(questions() * 16)]
    found = []
    for suppressed_ids in (None, ()):
        engine = ServerEngine(
            "parties", url, concurrency=4, extra_body={"return_token_ids": True}, suppressed_ids=suppressed_ids
        )
        outcomes = engine.sample(requests, SamplingParams(max_new_tokens=16))
        tokens = [token for samples in outcomes for sample in samples for token in sample.token_ids]
        assert len(tokens) > 500
        found.append(sum(token in placeholders for token in tokens))
    assert found[0] == 0
    assert found[1] > 10


def test_prefilter(url, data, tmp_path, capsys):
    output = tmp_path / "share.parquet"
    asked = [*POLICY, "--split", "train", "--n", "2", "--max-new-tokens", "24"]
    bounds = ["--rule", "share", "--low", "0", "--high", "1"]
    assert "of 2 questions" in do_twice(capsys, url, "prefilter", data, output, *asked, *bounds)
    assert list(units(f"{output}.sqlite").values()) == [4]
    assert len(rows_of(output)) == 2

    output = tmp_path / "adapo.parquet"
    with pytest.raises(SystemExit, match="kept 0 of 2 questions\ndropped 2: too hard"):  # it is right in no turn
        do_twice(capsys, url, "prefilter", data, output, *asked)
    assert list(units(f"{output}.sqlite").values()) == [4]


def test_evaluate_with_a_judge_and_step_beam(url, data, scorer, tmp_path, capsys):
    judge = ["--judge", "parties", "--judge-server", "URL"]
    said = do_twice(
        capsys, url, "evaluate", f"own={data}", *POLICY, *judge, "--system-prompt", COT_PROMPT,
        "--max-new-tokens", "24", "--output", tmp_path / "judged",
    )  # fmt: skip
    assert "2 questions, 2 samples" in said
    assert texts_of(tmp_path / "judged" / "own") == [
        ["<think>so 7</think><answer>7</answer>"],
        ["<think>so 5</think><answer>5</answer>"],
    ]
    searched = ["--protocol", "step-beam", "--process-reward", scorer, "--n", "2", "--max-new-tokens", "48"]
    do_twice(capsys, url, "evaluate", f"own={data}", *POLICY, *searched, "--output", tmp_path / "searched")
    samples = [json.loads(line) for line in (tmp_path / "searched" / "own" / "samples.jsonl").open()]
    assert [sample["tokens"] > 0 for sample in samples] == [True, True]  # of all candidates


def test_reflect(url, data, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    teacher = ["--teacher", "parties", "--teacher-server", "URL", "--right-share", "1", "--attempts", "6"]
    do_twice(capsys, url, "reflect", data, output, *POLICY, *teacher, "--max-new-tokens", "24", "--temperature", "0.2")
    rows = rows_of(output)
    assert rows["completion"][:] == [
        f"<think>so {k}</think>\n<answer>{k}</answer>\n<reflection>Right.</reflection>\n<answer>{k}</answer>"
        for k in "75"
    ]
    assert [len(images) for images in rows["images"]] == [0, 1]


def test_steps(url, data, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    bounds = ["--min-steps", FEWEST_STEPS, "--max-steps", MOST_STEPS, "--max-new-tokens", "64", "--attempts", "6"]
    teacher = ["--teacher", "parties", "--teacher-server", "URL", "--temperature", "0.2", "--batch-size", "4"]
    do_twice(capsys, url, "steps", data, output, *teacher, *bounds)
    assert rows_of(output)["id"][:] == ["sum", "picture"]


@pytest.mark.parametrize("by", ["monte-carlo", "judge"])
def test_annotate(url, data, tmp_path, capsys, by):
    output = tmp_path / "rows.parquet"
    judge = ["--judge", "parties", "--judge-server", "URL", "--judge-temperature", "0.2", "--attempts", "6"]
    judge += ["--judge-max-new-tokens", "32"]
    do_twice(
        capsys, url, "annotate", data, output, *POLICY, "--by", by, "--paths", "3", "--n", "2",
        "--max-new-tokens", "48", *(judge if by == "judge" else []),
    )  # fmt: skip
    done = units(f"{output}.sqlite")
    assert list(done.values())[0] == 6  # paths
    assert len(done) == 2
    rows = rows_of(output)
    assert len(rows) >= 1
    labels = [label for row in rows for label in row["step_labels"]]
    assert all(0 <= label <= 1 for label in labels)


def test_trajectories(url, data, tmp_path, capsys):
    output = tmp_path / "rows.parquet"
    reasoner = ["--reasoner", "parties", "--reasoner-server", "URL", "--captions", "2", "--trajectories", "2"]
    said = do_twice(
        capsys, url, "trajectories", data, output, *POLICY, *reasoner, "--caption-prompt", CAPTION_PROMPT,
        "--caption-temperature", "0.2", "--temperature", "0.2", "--max-new-tokens", "24", "--logprobs",
        "--caption-max-new-tokens", "24",
    )  # fmt: skip
    assert "captions: 2, 0 cut by the length limit, 0 failed\ntrajectories: 4, 0 cut" in said
    [row] = rows_of(output)
    assert row["completion"].endswith(r"\boxed{5}")
    assert len(row["behavior_logps"]) > 5


def test_evaluate_with_vllm_in_the_process(parties, data, tmp_path):
    command = [sys.executable, "-m", "trl_mmreason.cli.main", "evaluate", f"own={data}", "--model", parties, "--vllm"]
    command += ["--system-prompt", COT_PROMPT, "--max-new-tokens", "24", "--output", str(tmp_path)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    assert "2 questions, 2 samples" in done.stdout
    assert texts_of(tmp_path / "own") == [[f"<think>so {k}</think><answer>{k}</answer>"] for k in "75"]
    assert json.loads((tmp_path / "own" / "results.json").read_text())["settings"]["engine"]["kind"] == "vllm"
