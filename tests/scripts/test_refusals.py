"""What the user gave, or the machine, ends a script in one line; a bug keeps its traceback."""

import importlib
import io
import os
import resource
import runpy
import shutil
import signal
import sys
from pathlib import Path

import pytest
from example_runs import ROOT
from huggingface_hub import constants, get_session
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
from huggingface_hub.utils import hf_raise_for_status

from trl_mmreason.scripts.refusals import exit_on_refusal, refusal

HTTP = importlib.import_module(type(get_session()).__module__.partition(".")[0])  # httpx, or httpx2

SMALL = {
    **{"dataset_name": "miniature/adding", "train_rows": 16, "max_completion_length": 4, "max_steps": 1},
    **{"per_device_train_batch_size": 8, "num_generations": 4, "save_strategy": "no", "report_to": "none"},
    **{"use_cpu": "true", "bf16": "false", "disable_tqdm": "true"},
}


@pytest.fixture
def refused(checkpoints, tmp_path, monkeypatch, capsys):
    """How `examples/grpo.py` ends with these settings; `edit` changes the folder of its policy before."""

    def end(edit=None, **given):
        base = checkpoints("qwen2_5_vl")
        if edit is not None:
            base = shutil.copytree(base, tmp_path / "base")
            edit(base)
        settings = {"model_name_or_path": base, "output_dir": tmp_path / "out", **SMALL, **given}
        flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        monkeypatch.setattr(sys, "argv", ["grpo.py", *flags])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "examples/grpo.py"), run_name="__main__")
        said = capsys.readouterr().err.splitlines()[-1] if ended.value.code == 2 else ended.value.code
        return str(said).removeprefix("grpo.py: ").removeprefix("error: ").strip()

    return end


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"report_to": "wandbb"}, "RolloutConfig: report_to='wandbb', expected none, all or some of azure_ml, "),
        ({"num_generations": 0}, "RolloutConfig: num_generations=0, expected 2 or more: the answers to a question are"),
        ({"temperature": 0}, "RolloutConfig: temperature=0.0, expected above 0: greedy answers"),
        ({"top_k": -3}, "RolloutConfig: top_k=-3, expected 0 for all tokens, or more."),
        ({"learning_rate": -1}, "RolloutConfig: learning_rate=-1.0, expected 0 or more."),
        ({"max_steps": 0}, "RolloutConfig: max_steps=0, expected 1 or more, or -1 for num_train_epochs."),
        ({"gradient_accumulation_steps": 0}, "RolloutConfig: gradient_accumulation_steps=0, expected 1 or more."),
        ({"loss_type": "gpro"}, "RolloutConfig: loss_type='gpro', expected one of bnpo, cispo, dapo, dr_grpo, grpo, "),
        ({"scale_rewards": "grup"}, "RolloutConfig: scale_rewards='grup', expected one of False, True, batch, group, "),
        ({"max_prompt_length": 10}, "GroupGRPOTrainer: 16 of 16 prompts have more than max_prompt_length=10 tokens"),
        ({"use_peft": "true", "lora_target_modules": "nothing"}, "Target modules nothing not found in the base model."),
        ({"attn_implementation": "flassh"}, 'Specified `attn_implementation="flassh"` is not supported.'),
        ({"push_to_hub": "true"}, "the Hub: Cannot reach"),
        ({}, "GroupGRPOTrainer: nothing was trained. Not one of 2 groups of answers had anything to teach"),
    ],
    ids=lambda value: next(iter(value), "nothing to teach") if isinstance(value, dict) else "",
)
def test_settings_that_cannot_be_used_are_named_in_a_line(refused, given, message):
    line = refused(**given)
    assert line.startswith(message)
    assert "\n" not in line


def test_a_push_that_cannot_be_names_its_setting(refused):
    assert refused(push_to_hub="true").endswith(". Fix: unset HF_HUB_OFFLINE, or --push_to_hub false")


def cut(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (cut, "the model's weights cannot be read: Error while deserializing header"),
        (lambda folder: (folder / "model.safetensors").unlink(), "Error no file named model.safetensors"),
        (
            lambda folder: (folder / "config.json").write_text("{"),
            "holds no model: its config.json is not JSON: Ex",
        ),
        (
            lambda folder: (folder / "chat_template.jinja").unlink(),
            "GroupGRPOTrainer: the policy has no chat temp",
        ),
    ],
    ids=["cut weights", "no weights", "half a configuration", "no template"],
)
def test_a_folder_that_holds_no_policy_is_named_in_a_line(refused, edit, message):
    assert message in refused(edit)


def test_a_full_disk_ends_a_run_in_a_line(refused, monkeypatch):
    """Files of more than 200 kB: `EFBIG` is to the run what `ENOSPC` is."""
    monkeypatch.setattr(signal, "SIGXFSZ", signal.signal(signal.SIGXFSZ, signal.SIG_IGN), raising=False)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        line = refused(save_strategy="steps", save_steps=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "could not be written: " in line
    assert "Fix: free some space" in line
    assert "\n" not in line


def test_a_bug_keeps_its_traceback():
    """An operation that failed, what was raised in a step, and what other packages raise."""

    def training_step():
        raise ValueError("tokens: 3, features 4")

    def parse():
        return int("x")

    def other_package():
        return Path("a").relative_to("b")

    for bug in (training_step, parse, other_package):
        with pytest.raises(ValueError, match="features 4|invalid literal|not in the subpath"), exit_on_refusal():
            bug()
    with pytest.raises(RuntimeError, match="out of"), exit_on_refusal():
        raise RuntimeError("out of something")


@pytest.mark.parametrize(
    ("status", "fix"),
    [
        (401, ". Fix: log in with `hf auth login` or set HF_TOKEN"),
        (403, ". Fix: take a token that has the right to it (`hf auth login` or HF_TOKEN), or another repository"),
        (404, ""),
        (429, ". Fix: try again later"),
        (503, ". Fix: try again later"),
    ],
)
def test_the_fix_belongs_to_what_the_hub_answered(status, fix):
    url = f"{constants.ENDPOINT}/api/repos/create"
    answer = HTTP.Response(status, request=HTTP.Request("POST", url))
    with pytest.raises(HfHubHTTPError) as error:
        hf_raise_for_status(answer)
    line = refusal(error.value)
    assert url in line
    assert line.endswith(fix)
    assert ("Fix: " in line) == bool(fix)


def test_a_hub_out_of_reach_is_named():
    with pytest.raises(HTTP.ConnectError) as error:
        HTTP.get("http://127.0.0.1:9/", trust_env=False)
    assert refusal(error.value) == (
        f"the Hub: {constants.ENDPOINT}: [Errno 111] Connection refused. Fix: try again later"
    )


def test_what_is_no_space_and_what_the_hub_says():
    full = OSError(28, "No space left on device", "model.bin")
    assert refusal(full).startswith("a file could not be written: [Errno 28] No space left on device: 'model.bin'. Fix")
    login = "log in with `hf auth login` or set HF_TOKEN"
    line = f"the Hub: {constants.ENDPOINT}: Token is required. Fix: {login}"
    assert refusal(LocalTokenNotFoundError("Token is required")) == line
    assert refusal(PermissionError(13, "Permission denied", "x")) == "[Errno 13] Permission denied: 'x'"
    assert refusal(FileNotFoundError(2, "No such file", "x")) is None


def test_what_stdout_cannot_encode_is_printed_as_escapes(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252", write_through=True))
    with exit_on_refusal("mmreason evaluate"):
        sys.stdout.write("é, sample 0: 数 …\n")
    assert written.getvalue() == b"\xe9, sample 0: \\u6570 \x85" + os.linesep.encode()
