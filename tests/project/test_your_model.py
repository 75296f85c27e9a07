"""configs/*/your_model.yaml, the files to copy: each trains a LoRA of a tiny model on data in files, by its example."""

import json
import re

import pytest
import yaml
from datasets import Dataset, Image, List
from example_runs import ROOT, save_base, train_here
from PIL import Image as Images
from support import full_but, write_lines
from transformers import AutoModelForImageTextToText

from trl_mmreason.chain_of_step.miniature import drawn_chains
from trl_mmreason.chain_of_step.template import STEP_START
from trl_mmreason.miniature.tasks import make_problems

STAGED = ("chain_of_step", "sophia", "self_evolution")
SHORT = {"use_cpu": "true", "bf16": "false", "max_steps": 1, "gradient_accumulation_steps": 2, "save_strategy": "no"}
SHORT |= {"report_to": "none", "gradient_checkpointing": "false", "disable_tqdm": "true"}


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base"), in_steps=True)


@pytest.fixture
def train(policy, tmp_path, monkeypatch):
    """Run a method's example as the command line does, with its `your_model.yaml` and these options over it."""
    for split, count in (("train", 8), ("test", 2)):
        (tmp_path / "pictures").mkdir(exist_ok=True)
        rows = []
        for number, problem in enumerate(make_problems(["adding"], count, seed=count)):
            problem.image.save(tmp_path / f"pictures/{split}{number}.png")
            image = f"pictures/{split}{number}.png"
            rows.append({"prompt": problem.question, "images": [image], "answer": str(problem.answer)})
        write_lines(tmp_path / f"{split}.jsonl", rows)

    def run(method, **options):
        data = {"dataset_name": tmp_path / "train.jsonl", "eval_dataset_name": tmp_path / "test.jsonl"}
        given = {"model_name_or_path": policy, "dtype": "float32", **data, "output_dir": tmp_path / "out", **options}
        flags = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
        train_here(monkeypatch, method, "--config", f"{method}/your_model.yaml", *flags)
        return given["output_dir"]

    return run


def in_sections(sections, **settings):
    """Options of stages, and those that all stages have in common."""
    common = {f"common.{name}": value for name, value in SHORT.items()} | {"common.save_strategy": "'no'"}  # as YAML
    own = {"max_steps": 1, "gradient_accumulation_steps": 2, **settings}
    return common | {f"{section}.{name}": value for section in sections for name, value in own.items()}


def steps_of(folder):
    return json.loads((folder / "trainer_state.json").read_text())["global_step"]


@pytest.mark.parametrize("method", full_but("adapo", ["adapo", "srpo"]))
def test_reinforcement_saves_an_adapter_and_compares(method, train):
    out = train(method, **SHORT, max_completion_length=8, learning_rate=0)  # a random policy earns nothing
    assert steps_of(out) == 1
    assert (out / "adapter_model.safetensors").exists()
    assert not (out / "model.safetensors").exists()
    assert ": 2 questions" in (out / "report.html").read_text()


@pytest.mark.full
def test_an_adapter_without_named_layers_trains_and_is_evaluated_on_the_way(policy, tmp_path, monkeypatch):
    options = {"model_name_or_path": policy, "output_dir": tmp_path / "out", **SHORT, "dtype": "float32"}
    options |= {
        "learning_rate": 0,
        "train_rows": 8,
        "eval_rows": 4,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
    }
    options |= {
        "max_completion_length": 4,
        "use_peft": "true",
        "eval_strategy": "steps",
        "eval_steps": 1,
        "logging_steps": 1,
    }
    flags = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    train_here(monkeypatch, "adapo", "--config", "adapo/miniature.yaml", *flags)
    assert (tmp_path / "out/adapter_model.safetensors").exists()
    logged = json.loads((tmp_path / "out/trainer_state.json").read_text())["log_history"]
    assert any("eval_reward" in entry for entry in logged)


@pytest.mark.full
def test_self_evolution_s_adapter_is_merged_into_what_is_measured(train, policy):
    bounds = {"max_completion_length": 8, "judge_max_tokens": 4}
    out = train("self_evolution", answers=2, **in_sections(["evolution"], **bounds, learning_rate=0.0))
    assert_merged(out / "evolve", policy)
    assert (out / "evaluation/self-evolution/results.json").exists()


def assert_merged(folder, base):
    """`model` is a whole model with the adapter's change, which is in the layers of the language model alone."""
    assert steps_of(folder / "model") == 1
    assert json.loads((folder / "adapter/adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    return assert_layers_changed(folder / "model", base)


def assert_layers_changed(whole, base):
    """Compared with its base, a model has other weights in the layers of the language model alone; their names."""
    before, after = (AutoModelForImageTextToText.from_pretrained(path) for path in (base, whole))
    changed = {name for name, weight in after.named_parameters() if not weight.equal(before.get_parameter(name))}
    layers = {
        name for name, _ in after.named_parameters() if "language_model.layers" in name and "_proj.weight" in name
    }
    assert changed <= layers
    return changed


@pytest.mark.full
def test_sophia_s_stages_each_merge_an_adapter(train, policy, tmp_path):
    message = [{"role": "user", "content": "1+1?"}]
    rows = [{"prompt": message, "completion": "<think>1+1</think> 2", "reward": 1.0, "images": [image()]}] * 4
    made = Dataset.from_list(rows).cast_column("images", List(Image()))
    made.to_parquet(tmp_path / "trajectories.parquet")
    bounds = {"difficulty.n": 2, "difficulty.low": 0.0, "difficulty.high": 1.0}
    options = {"trajectory_dataset": tmp_path / "trajectories.parquet", "max_completion_length": 8, **bounds}
    out = train("sophia", **options, **in_sections(["update", "grpo"]), **{"grpo.learning_rate": 0.0})
    assert assert_merged(out / "update", policy)
    assert_merged(out / "grpo", out / "update/model")
    assert {"before", "SOPHIA", "SOPHIA-GRPO"} <= {path.name for path in (out / "evaluation").iterdir()}


@pytest.mark.full
def test_the_cold_start_of_srpo_saves_an_adapter_which_its_last_line_merges(train, policy, tmp_path, monkeypatch):
    """Both recipes have the line, and SRPO's takes the folder that it writes."""
    message = [{"role": "user", "content": "1+1?"}]
    said = "<think>1+1</think> <answer>2</answer> <reflection>Right.</reflection> <think>1+1</think> <answer>2</answer>"
    rows = [{"prompt": message, "completion": said, "images": [image()]}] * 4
    for name in ("reflections", "reflections-eval"):
        Dataset.from_list(rows).cast_column("images", List(Image())).to_parquet(tmp_path / f"{name}.parquet")
    data = {"dataset_name": tmp_path / "reflections.parquet"}
    data |= {"eval_dataset_name": tmp_path / "reflections-eval.parquet"}
    once = {"eval_steps": 1, "warmup_steps": 0}  # the first step of a warm-up has a rate of 0
    out = train("reflection_sft", **SHORT, **data, **once, output_dir=tmp_path / "runs/reflection-sft-mine")
    assert steps_of(out) == 1
    assert (out / "adapter_model.safetensors").exists()
    logged = json.loads((out / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in logged if "eval_loss" in entry] == [0, 1]

    heads = [(ROOT / f"configs/{method}/your_model.yaml").read_text() for method in ("reflection_sft", "srpo")]
    (line,) = {line for head in heads for line in re.findall(r"^#   python -c '(.*)'$", head, re.MULTILINE)}
    monkeypatch.chdir(tmp_path)
    exec(line)
    whole = yaml.safe_load(heads[1])["model_name_or_path"]
    assert assert_layers_changed(whole, policy)
    rl = train("srpo", **SHORT, model_name_or_path=whole, max_completion_length=8, learning_rate=0)
    assert json.loads((rl / "adapter_config.json").read_text())["base_model_name_or_path"] == whole


def image():
    return Images.new("RGB", (28, 28))


@pytest.mark.full
def test_chain_of_step_trains_whole_models_and_then_an_adapter(train, tmp_path):
    """Without dpo: a policy that has had one step on chains writes none that could be paired."""
    chains = drawn_chains(make_problems(["adding"], 4, seed=2), tmp_path / "steps.sqlite")
    chains.to_parquet(tmp_path / "chains.parquet")
    labels = chains.map(
        lambda row: {"step_labels": [1.0] * str(row["completion"]).count(STEP_START), "answer_label": 1.0}
    )
    labels.to_parquet(tmp_path / "labels.parquet")
    options = {"step_dataset": tmp_path / "chains.parquet", "label_dataset": tmp_path / "labels.parquet"}
    options |= {"stages": "sft,prm,grpo", "max_completion_length": 8}
    out = train("chain_of_step", **options, **in_sections(["sft", "prm", "grpo"]), **{"grpo.learning_rate": 0.0})
    assert not (out / "sft/adapter").exists()
    assert not (out / "prm/adapter").exists()
    assert_merged(out / "grpo", out / "sft/model")


@pytest.mark.parametrize("method", ["adapo", "srpo", "reflection_sft", *STAGED])
def test_a_missing_tracker_is_named_before_anything_is_loaded(method, monkeypatch, capsys):
    """Every one of these files logs to trackio, which is an extra."""
    monkeypatch.setattr("trl_mmreason.compat.packages.find_spec", lambda name: None)
    on_cpu = [] if method in STAGED else ["--bf16", "false", "--use_cpu", "true"]
    with pytest.raises(SystemExit):
        train_here(monkeypatch, method, "--config", f"{method}/your_model.yaml", *on_cpu)
    expected = 'report_to: trackio is not installed. Fix: pip install "trl-mmreason[tracking]", or '
    expected += "--common.report_to none" if method in STAGED else "--report_to none"
    assert expected in capsys.readouterr().err
