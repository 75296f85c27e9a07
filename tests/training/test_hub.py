"""Model cards and `push_to_hub`: what TRL's own path brings to the Hub, by real HTTP against a stub on loopback.

The client reads its settings when it is imported, and `conftest.py` has set it offline. Everything that talks to the
stub therefore runs in one worker process, `push_everything`, whose findings the tests read.
"""

import json
import logging
import subprocess
import sys
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from hub_stub import TOKEN, HubStub, client_environment
from huggingface_hub import ModelCard
from huggingface_hub.errors import HfHubHTTPError
from loopback import serving
from peft import LoraConfig, PeftModel, get_peft_model_state_dict
from support import adapo_trainer, drawn_rows, load, saved_model

from trl_mmreason.scripts.single_stage import PushRefused, publish, train_and_save
from trl_mmreason.training.model_card import EVALUATIONS

pytestmark = pytest.mark.full

WRONG_TOKEN = "hf_refused"

ROWS = [
    *("report.html", "rounds.sqlite", "unheard_of.jsonl", "notes.txt", "_questions/1.png", "evaluation/table.txt"),
    *("round-1/pairs.parquet", "round-1/policy/model.safetensors", "round-1/checkpoint-1/optimizer.pt", "rows.json"),
]
"""Files of several stages, rounds and evaluations, and some that nobody has thought of."""


# -------------------------------------------------------------------------------------------------- the worker process


def push_everything(folder: Path) -> None:
    base = str(saved_model("qwen2_5_vl", folder / "base"))
    findings = {
        "full": push_a_model(base, folder / "full"),
        "in_memory": push_a_model(load(base)[0], folder / "in_memory", processing_class=load(base)[1]),
        "lora": push_an_adapter("tester/full", folder / "lora"),
        "every_save": push_while_training(base, folder / "every_save"),
        "checkpoint": push_while_training(base, folder / "checkpoint"),
        "refused_at_start": be_refused_at_start(base, folder / "refused_at_start"),
        "refused_at_end": be_refused_at_end(base, folder / "refused_at_end"),
        "published": publish_a_model(base, folder / "published"),
        "unpublished": be_refused_by_publish(base, folder / "unpublished"),
        "refused_meanwhile": be_refused_while_training(base, folder / "refused_meanwhile"),
    }
    torch.save(findings, folder / "findings.pt")


def one_step_trainer(model, folder, **settings):
    return adapo_trainer(model, folder, drawn_rows(4), max_steps=1, **settings)


def push_a_model(base, folder, **trainer_kwargs):
    trainer = one_step_trainer(base, folder, trainer_kwargs=trainer_kwargs)
    trainer.train()
    (folder / EVALUATIONS / "before").mkdir(parents=True)
    (folder / EVALUATIONS / "before/samples.jsonl").write_text("{}\n")
    trainer.push_to_hub()
    return compare_with_hub(trainer)


def compare_with_hub(trainer):
    model, processor = load(trainer.hub_model_id)
    return {
        "trained": trainer.model.state_dict(),
        "loaded": model.state_dict(),
        "trained_classes": [type(trainer.model).__name__, type(trainer.processing_class).__name__],
        "loaded_classes": [type(model).__name__, type(processor).__name__],
    }


def push_an_adapter(base, folder):
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    trainer = one_step_trainer(base, folder, trainer_kwargs={"peft_config": lora})
    trainer.train()
    trainer.push_to_hub()
    loaded = PeftModel.from_pretrained(load(base)[0], trainer.hub_model_id)
    return {"trained": get_peft_model_state_dict(trainer.model), "loaded": get_peft_model_state_dict(loaded)}


def push_while_training(base, folder):
    settings = {"save_strategy": "steps", "save_steps": 1, "push_to_hub": True, "hub_strategy": folder.name}
    trainer = one_step_trainer(base, folder, num_iterations=2, **settings)  # the checkpoint holds half a rollout
    trainer.train()
    return compare_with_hub(trainer)


def publish_a_model(base, folder):
    """As the scripts do, with a run's own files beside the model."""
    trainer = one_step_trainer(base, folder, push_to_hub=True, log_completions=True, num_completions_to_print=0)
    train_and_save(trainer)
    for file in ROWS:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("a question of the test set")
    with redirect_stdout(StringIO()) as said, warnings_of() as warned:
        publish(trainer, "data/rows.parquet")
    return {"said": said.getvalue(), "warned": warned, "completions": len(list((folder / "completions").iterdir()))}


def be_refused_by_publish(base, folder):
    trainer = one_step_trainer(base, folder, push_to_hub=True)
    train_and_save(trainer)
    trainer.args.hub_token = WRONG_TOKEN
    with pytest.raises(PushRefused) as refusal, warnings_of() as warned:
        publish(trainer, "data/rows.parquet")
    again = one_step_trainer(base, folder, push_to_hub=True, resume_from_checkpoint="auto")
    train_and_save(again)
    publish(again, "data/rows.parquet")
    trained = trainer.model.state_dict()
    return {"error": str(refusal.value), "trained": trained, "warned": warned, "steps": again.facts.updates}


def be_refused_while_training(base, folder):
    settings = {"save_strategy": "steps", "save_steps": 1, "push_to_hub": True, "hub_strategy": "every_save"}
    with warnings_of() as warned:
        trainer = one_step_trainer(base, folder, **settings)
        trainer.args.hub_token = WRONG_TOKEN  # as one that expires
        trainer.train()
    return {"warned": warned}


@contextmanager
def warnings_of():
    """What this package warns of within the block."""
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("trl_mmreason").addHandler(handler)
    yield said
    logging.getLogger("trl_mmreason").removeHandler(handler)


def be_refused_at_start(base, folder):
    with pytest.raises(HfHubHTTPError) as refusal:
        one_step_trainer(base, folder, push_to_hub=True, hub_token=WRONG_TOKEN)
    return {"error": str(refusal.value)}


def be_refused_at_end(base, folder):
    trainer = one_step_trainer(base, folder)
    trainer.train()
    with pytest.raises(HfHubHTTPError) as refusal:
        trainer.push_to_hub(token=WRONG_TOKEN)
    return {"error": str(refusal.value), "trained": trainer.model.state_dict()}


# ----------------------------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def hub(folder):
    """The stub, after the worker process has pushed everything to it."""
    with serving(HubStub("tester", TOKEN)) as stub:
        worker = subprocess.run(
            [sys.executable, "-c", f"from test_hub import *; push_everything(Path({str(folder)!r}))"],
            cwd=Path(__file__).parent,
            env=client_environment(stub.url, folder / "home"),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert worker.returncode == 0, worker.stderr
    return stub


@pytest.fixture(scope="module")
def findings(hub, folder):
    return torch.load(folder / "findings.pt", weights_only=True)


def assert_equal_tensors(actual, expected):
    assert actual.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(actual[name], expected[name])] == []


def test_the_stub_knew_every_request_about_its_models(hub):
    assert [request for request in hub.unknown if "tester" in request] == []


def test_a_trained_model_is_pushed_with_processor_arguments_and_card(hub):
    pushed = hub.repos["tester/full"]
    assert pushed.commits == ["End of training"]
    model = {"config.json", "generation_config.json", "model.safetensors"}
    processor = {"processor_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert pushed.files.keys() >= model | processor | {"training_args.bin", "README.md"}
    assert [path for path in pushed.files if "/" in path] == []  # no checkpoint and no evaluation goes along


def test_the_reference_of_a_policy_passed_in_memory_is_not_pushed(hub, folder):
    assert (folder / "in_memory" / "_reference" / "model.safetensors").exists()
    assert [path for path in hub.repos["tester/in_memory"].files if "/" in path] == []


@pytest.mark.parametrize("name", ["full", "lora", "every_save"])
def test_the_card_names_method_paper_and_citation(name, hub):
    card = ModelCard(hub.repos[f"tester/{name}"].files["README.md"].decode())
    assert card.data.library_name == "transformers"
    assert card.data.model_name == name
    assert set(card.data.tags) >= {"trl", "trl-mmreason", "adapo"}
    title = (
        "A Rolling Stone Gathers No Moss: Adaptive Policy Optimization for Stable Self-Evaluation in Large Multimodal "
        "Models"
    )
    assert (
        f"This model was trained with AdaPO, a method introduced in [{title}](https://huggingface.co/papers/2508.09155)"
    ) in card.text
    citation = card.text.split("Cite AdaPO as:\n\n```bibtex\n")[1].split("```")[0]
    assert citation.startswith("@inproceedings{wang2026adapo,\n")
    assert title in citation
    assert "eprint       = {arXiv:2508.09155}" in citation


@pytest.mark.parametrize("name", ["full", "every_save", "checkpoint"])
def test_what_is_loaded_from_the_hub_is_the_trained_model(name, findings, folder):
    found = findings[name]
    assert_equal_tensors(found["loaded"], found["trained"])
    assert found["loaded_classes"] == found["trained_classes"]
    base = load(folder / "base")[0].state_dict()
    assert any(not torch.equal(base[weight], found["loaded"][weight]) for weight in base)  # the step changed something


def test_an_adapter_is_pushed_and_names_the_base_model_it_was_trained_on(hub, findings):
    files = hub.repos["tester/lora"].files
    assert {"adapter_config.json", "adapter_model.safetensors"} <= files.keys()
    assert "model.safetensors" not in files
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "tester/full"
    card = ModelCard(files["README.md"].decode())
    assert card.data.base_model == "tester/full"
    assert "fine-tuned version of [tester/full](https://huggingface.co/tester/full)" in card.text

    assert_equal_tensors(findings["lora"]["loaded"], findings["lora"]["trained"])
    second_factors = [weight for name, weight in findings["lora"]["loaded"].items() if "lora_B" in name]
    assert len(second_factors) == 4  # of q and v in two layers
    assert all(weight.any() for weight in second_factors)  # they begin as zeros: the step changed them


def test_every_save_pushes_the_model_while_it_trains(hub):
    pushed = hub.repos["tester/every_save"]
    assert pushed.commits == ["Training in progress, step 1"]
    assert [path for path in pushed.files if "/" in path] == []


def test_the_checkpoint_strategy_also_pushes_what_a_run_resumes_from(hub, folder):
    pushed = hub.repos["tester/checkpoint"]
    assert pushed.commits == ["Training in progress, step 1", "Training in progress, step 1, checkpoint"]
    assert pushed.files["last-checkpoint/model.safetensors"] == pushed.files["model.safetensors"]
    assert json.loads(pushed.files["last-checkpoint/trainer_state.json"])["global_step"] == 1
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "_files.json"):
        assert pushed.files[f"last-checkpoint/{name}"]
    assert (folder / "checkpoint/checkpoint-1/rollouts_0_of_1.pt").exists()
    assert [path for path in pushed.files if "rollouts" in path] == []  # prompts, answers and images


def test_what_a_script_publishes_has_no_row_of_the_data_and_its_address_is_printed(hub, findings, folder):
    found, pushed = findings["published"], hub.repos["tester/published"]
    assert found["completions"] == 1
    assert pushed.commits == ["End of training"]
    assert "model.safetensors" in pushed.files
    assert sorted(pushed.files.keys() & {*ROWS, "training.html"}) == []
    assert [path for path in pushed.files if "/" in path] == []
    assert found["said"] == f"Pushed to {hub.url}/tester/published\n"


def test_a_base_that_nobody_else_has_is_warned_of_and_not_linked(hub, findings, folder):
    card = ModelCard(hub.repos["tester/published"].files["README.md"].decode())
    assert "base_model" not in card.data.to_dict()
    (warning,) = findings["refused_meanwhile"]["warned"][:1]
    assert warning.startswith(
        f"The card of the model that is pushed names no base model, as {folder / 'base'} is a folde"
    )


def test_a_push_that_is_refused_after_a_script_s_training_says_where_the_model_is(hub, findings, folder):
    found, place = findings["unpublished"], folder / "unpublished"
    assert found["error"].startswith(f"the model is saved in {place}, but was not pushed: ")
    assert hub.url in found["error"]
    assert found["error"].endswith(
        "Fix: log in with `hf auth login` or set HF_TOKEN, then the same command with --resume_from_checkpoint auto, "
        "which trains no further and pushes."
    )
    assert f"Pushing {place} to {hub.url}/tester/unpublished" in found["warned"]
    assert_equal_tensors(load(place)[0].state_dict(), found["trained"])
    assert (place / "trainer_state.json").exists()
    assert (findings["unpublished"]["steps"], hub.repos["tester/unpublished"].commits) == (0, ["End of training"])
    assert "model.safetensors" in hub.repos["tester/unpublished"].files


def test_a_push_that_is_refused_while_training_is_warned_of(hub, findings, folder):
    assert hub.repos["tester/refused_meanwhile"].commits == []
    *_, warning = findings["refused_meanwhile"]["warned"]
    assert warning.startswith(
        f"A push during training was refused; the checkpoint is in {folder / 'refused_meanwhile'}: "
    )
    assert "401" in warning


def test_a_token_from_the_environment_is_in_no_pushed_file(hub):
    contents = {f"{name}/{path}": data for name, repo in hub.repos.items() for path, data in repo.files.items()}
    assert len(contents) > 30
    assert [path for path, data in contents.items() if TOKEN.encode() in data] == []


def test_a_refused_token_stops_a_run_that_is_to_push_before_it_trains(hub, findings):
    assert "tester/refused_at_start" not in hub.repos
    error = findings["refused_at_start"]["error"]
    assert f"'401 Unauthorized' for url '{hub.url}/api/repos/create'" in error
    assert "Invalid credentials" in error


def test_a_token_that_is_refused_after_training_leaves_the_model_on_disk(hub, findings, folder):
    assert "tester/refused_at_end" not in hub.repos
    error = findings["refused_at_end"]["error"]
    assert "401 Unauthorized" in error
    assert "Invalid credentials" in error
    model, processor = load(folder / "refused_at_end")
    assert_equal_tensors(model.state_dict(), findings["refused_at_end"]["trained"])
    assert processor.chat_template == load(folder / "base")[1].chat_template
