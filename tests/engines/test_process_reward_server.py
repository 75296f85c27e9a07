"""A process reward model behind `vllm serve` gives the scores that it gives in this process, in every family."""

import os
import sys
from pathlib import Path

import pytest
import torch
from processes import serving
from short_chains import chain
from support import drawn_rows, full_but

from trl_mmreason.chain_of_step.process_reward import ProcessRewardModel
from trl_mmreason.chain_of_step.process_reward_client import ProcessRewardClient
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.miniature.models import build_model

pytest.importorskip("vllm")

COMMAND = "--runner pooling --convert classify --pooler-config.task token_classify --dtype float32 --enforce-eager"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
if not torch.cuda.is_available():
    ENVIRONMENT["TORCH_COMPILE_DISABLE"] = "1"  # vLLM reads it; compiling takes half a minute


def pooling_server(model, log, *options):
    """Address of `vllm serve`, as the documentation starts it, in float32 as the comparison needs it."""
    command = [Path(sys.executable).with_name("vllm"), "serve", model, *COMMAND.split()]
    return serving([*command, "--max-model-len", "1024", *options], log, "/health", ENVIRONMENT)


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", ["qwen2_5_vl", "llava_next"]))
def test_vllm_scores_as_the_model_in_this_process(family, tmp_path):
    """One, two or no image; whole and partial chains, an answer alone, and nothing to score."""
    model, processor = build_model(family, "study")
    add_chain_tokens(model, processor)
    ProcessRewardModel(model, processor, right_token="7", wrong_token="3").save_pretrained(tmp_path / "prm")
    prm = ProcessRewardModel.from_pretrained(tmp_path / "prm", dtype="float32")
    completions = [chain("3", "4"), chain("3", answer=None), chain("4"), f"{chain('2')}\n"]
    completions += ["<|answer_start|>7<|answer_end|>", "It is 7."]
    rows = [{**row, "completion": text} for row, text in zip(drawn_rows(6), completions, strict=True)]
    expected = prm.score(rows)
    assert len({round(score, 3) for steps, _ in expected for score in steps.tolist()}) == 5
    template, options = processor.chat_template, []
    if "' ' + message['content']" in template:  # else the client refuses the server
        (tmp_path / "template.jinja").write_text(template.replace("' ' + message['content']", "message['content']"))
        options = ["--chat-template", str(tmp_path / "template.jinja")]
    with pooling_server(str(tmp_path / "prm"), tmp_path / "log.txt", *options) as url:
        scores = ProcessRewardClient(url).score(rows)
        assert ProcessRewardClient(url).settings["model"] == str(tmp_path / "prm")
    for one, other in zip(scores, expected, strict=True):
        torch.testing.assert_close(one.steps, other.steps, atol=1e-4, rtol=0)
        assert one.answer == (None if other.answer is None else pytest.approx(other.answer, abs=1e-4))
