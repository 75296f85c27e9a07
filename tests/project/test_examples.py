"""The examples: real, short runs of a random model, with everything that they leave behind; AdaPO as users start it."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from example_runs import ACCELERATE, ROOT, load_example, start
from pages import page_of
from PIL import Image
from safetensors.torch import load_file
from support import drawn_rows, load
from trl import ModelConfig

from trl_mmreason import SRPOConfig
from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.evaluation.metrics import format_table, metric_of, verdict
from trl_mmreason.evaluation.results import compare_results
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.miniature.models import build_model
from trl_mmreason.srpo.protocols import Reflection
from trl_mmreason.srpo.stopping import learnt
from trl_mmreason.training.model_card import EVALUATIONS

ONE_PROCESS = [sys.executable]  # as `make quickstart` starts it
# The rendezvous finds a free port by itself.
TWO_PROCESSES = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d"]
TWO_PROCESSES += ["--rdzv-endpoint=localhost:0"]

KEEP_ALL = ["--filter_zero_advantage", "false", "--filter_truncated", "false"]
TWO_TURNS, REFLECTIONS = list(TwoTurn.metrics), list(Reflection.metrics)


def run(method, model, folder, *options, config=None, launcher=None):
    """Run an example for two steps in `folder`; a random model needs no cold start.

    It earns nothing, and a run that trains nothing ends with an error, unless its learning rate says that it is meant.
    """
    settings = {
        "config": ROOT / f"configs/{config or method}/miniature.yaml",
        "model_name_or_path": model,
        "use_cpu": "true",
        "max_steps": 2,
        "learning_rate": 0,
        "train_rows": 64,
        "eval_rows": 16,
        "per_device_train_batch_size": 16,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 1,
    }
    arguments = [str(part) for key, value in settings.items() for part in (f"--{key}", value)]
    done = start(method, folder, *arguments, *options, launcher=launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def table_rows(stdout, metrics):
    """The first cells of the printed table's lines, in their order; as many as there are metrics."""
    lines = stdout.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("percent [95 % interval]")]
    return [line.split("  ")[0] for start in starts for line in lines[start + 1 : start + 1 + len(metrics)]]


def labels(metrics):
    return [metric_of(name).label for name in metrics]


def assert_everything_is_there(done, folder, trainer_name, metrics=TWO_TURNS):
    assert table_rows(done.stdout, metrics) == labels(metrics)  # once
    assert f"Report: {folder / 'report.html'}" in done.stdout
    before, after = (read_evaluation(folder / EVALUATIONS / moment) for moment in ("before", "after"))
    assert "model" not in after.about["settings"]["engine"]  # it would be the policy before training
    changes = compare_results(before.results, after.results)
    table = format_table({name: changes[name] for name in metrics})
    said = verdict(changes["acc_t2"].change.interval)
    assert f"\n{table}\n\nacc@t2 {said}.\n" in done.stdout
    assert f"```text\n{table}\n```" in (folder / "README.md").read_text()
    assert changes["acc_t2"].before.value == 0.0  # a random model adds no digits
    page = page_of(folder / "report.html")
    title, headings = page.with_tag("h1")[0]["text"], [heading["text"] for heading in page.with_tag("h2")]
    assert re.fullmatch(rf"{trainer_name} on miniature/adding \(\w+\): 16 questions", title)
    assert headings == ["Comparison", "Training curves", "Trajectories"]
    assert len(page.with_class("trajectory")) == 2 * 16
    with Image.open(folder / "curves.png") as curves:
        curves.verify()
    assert trainer_name in (folder / "README.md").read_text()
    steps = json.loads((folder / "checkpoint-2/trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in steps] == [1, 2]
    return steps


@pytest.fixture(scope="module")
def adapo_run(checkpoints, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapo") / "out"
    done = run("adapo", checkpoints("qwen2_5_vl"), folder, *KEEP_ALL, launcher=ONE_PROCESS)
    return done, folder


def test_adapo(adapo_run, checkpoints):
    done, folder = adapo_run
    steps = assert_everything_is_there(done, folder, "AdaPO")
    assert [entry["rewards/adapo/mean"] for entry in steps] == [-1.5, -1.5]  # 0→0 at P = 1: -1 - 0.5
    groups = folder / "training.html"  # of the two steps, each of two groups of eight
    assert done.stdout.splitlines()[-3:] == [
        f"Output: {folder}",
        f"Report: {folder / 'report.html'}, {groups}",
        f"Next:   mmreason evaluate miniature/adding --model {folder}",
    ]
    assert len(page_of(groups).with_class("trajectory")) == 2 * 2 * 8


def test_a_run_that_earns_nothing_ends_with_a_status_other_than_0(checkpoints, tmp_path):
    settings = {"config": ROOT / "configs/adapo/miniature.yaml", "model_name_or_path": checkpoints("qwen2_5_vl")}
    settings |= {"use_cpu": "true", "max_steps": 1, "train_rows": 16, "eval_dataset_name": "null"}
    options = [str(part) for key, value in settings.items() for part in (f"--{key}", value)]
    done = start("adapo", tmp_path / "out", *options, "--per_device_train_batch_size", "16")
    assert done.returncode == 1
    assert re.search(r"nothing was trained\. Not one of 2 groups of answers had anything to teach", done.stderr)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out/model.safetensors").exists()


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


@pytest.mark.full
def test_grpo(checkpoints, tmp_path):
    folder = tmp_path / "out"
    done = run("grpo", checkpoints("qwen2_5_vl"), folder)
    steps = assert_everything_is_there(done, folder, "GRPO")
    assert [entry["rewards/accuracy_reward/mean"] for entry in steps] == [0.0, 0.0]
    assert "length_t1" not in steps[0]  # one turn
    assert weights(folder).keys() == weights(checkpoints("qwen2_5_vl")).keys()


@pytest.mark.full
def test_score(checkpoints, tmp_path):
    """SCoRe takes what AdaPO takes; one step is of stage I and one of stage II."""
    folder = tmp_path / "out"
    done = run("score", checkpoints("qwen2_5_vl"), folder, "--beta", "0.02", config="adapo")
    steps = assert_everything_is_there(done, folder, "SCoRe")
    assert [(entry["beta_1"], entry["beta_2"]) for entry in steps] == [
        (pytest.approx(0.1), 0.0), (pytest.approx(0.02), pytest.approx(0.02))
    ]  # fmt: skip


@pytest.mark.full
def test_srpo_without_a_cold_start_and_without_the_reflections_reward(checkpoints, tmp_path):
    folder = tmp_path / "out"
    ablations = ["--reflection_dataset", "null", "--reflection_reward", "false"]
    done = run("srpo", checkpoints("qwen2_5_vl"), folder, *ablations)
    steps = assert_everything_is_there(done, folder, "SRPO", REFLECTIONS)
    assert steps[0]["rewards/format_reward/mean"] == 0.0  # a random model writes no tags
    assert "rewards/effectiveness_reward/mean" not in steps[0]
    assert not (folder / "reflection_sft").exists()


@pytest.mark.full
def test_srpo_from_nothing(tmp_path):
    """The whole chain on a policy that has just learnt the format: answers, reflections, cold start, two steps.

    So few steps do not teach it to reflect, which is said.
    """
    folder = tmp_path / "out"
    early = {"cold_start_accuracy": 0.05, "reflection_problems": 100, "reflection_right_share": 0, "sft_max_steps": 4}
    early |= {"learning_rate": 1e-3, "filter_min_accuracy": 0}  # of few right answers whole groups are wrong
    options = [str(part) for key, value in early.items() for part in (f"--{key}", value)]
    done = run("srpo", "miniature/qwen2_5_vl/demo", folder, *options)
    assert table_rows(done.stdout, REFLECTIONS) == labels(REFLECTIONS)
    told = (
        r"SRPO's cold start: \d+% of the sampled responses complete, .* after \d+ steps, expected 95% and \+0 or more"
    )
    assert re.search(told, done.stderr)
    (base,) = (folder / "cold_start").glob("*/model.safetensors")
    (reflected,) = (folder / "reflection_sft").glob("*/model.safetensors")
    start, after_sft, final = (weights(path.parent) for path in (base, reflected, folder / "model.safetensors"))
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(start[name], after_sft[name])
    assert not torch.equal(after_sft[name], final[name])
    assert str(reflected.parent) in (folder / "report.html").read_text()  # the policy that RL began with
    assert not list(folder.glob("*/*.unfinished"))


@pytest.mark.full
def test_srpo_does_not_repeat_a_cold_start(checkpoints, tmp_path):
    example = load_example("srpo")
    completion = "<think>1+1=2</think> <answer>2</answer> <reflection>Not so.</reflection> <answer>3</answer>"
    prompt = [{"role": "user", "content": "1+1?"}]
    Dataset.from_list([{"prompt": prompt, "completion": completion}] * 8).to_parquet(tmp_path / "reflections.parquet")
    model, questions = checkpoints("qwen2_5_vl"), Dataset.from_list([{"prompt": prompt, "answer": "2"}] * 4)

    def cold_start(chat_template_kwargs=None, **settings):
        source = {"dataset_name": "miniature/adding", "reflection_dataset": str(tmp_path / "reflections.parquet")}
        data = example.ReflectionArguments(**{**source, "sft_max_steps": 2, **settings})
        run = {"use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True, "max_completion_length": 8}
        args = SRPOConfig(str(tmp_path / "out"), **run, chat_template_kwargs=chat_template_kwargs)
        return Path(example.cold_start(model, questions, data, args))

    first = cold_start()
    made = (first / "model.safetensors").stat().st_mtime_ns
    assert cold_start() == first
    assert (first / "model.safetensors").stat().st_mtime_ns == made
    assert cold_start(sft_max_steps=1) != first
    assert cold_start({"thinks": False}) != first  # by which responses were asked for when it ended
    other = [{"prompt": prompt, "completion": f"{completion} "}] * 8
    Dataset.from_list(other).to_parquet(tmp_path / "reflections.parquet")
    assert cold_start() != first  # of other rows under the same name
    # each looks for checkpoints to resume from in a folder of its own
    assert len(list((tmp_path / "out").glob("reflection_sft-*"))) == 4


@pytest.mark.full
def test_srpo_s_cold_start_ends_when_sampled_responses_are_complete(tmp_path, caplog):
    """Real samples of a real policy, which learns one response by heart; the bound is far away."""
    example = load_example("srpo")
    model, processor = build_model("qwen2_5_vl", "test")
    model.save_pretrained(tmp_path / "policy")
    processor.save_pretrained(tmp_path / "policy")
    completion = "<think>1+1=2</think> <answer>2</answer> <reflection>Not so.</reflection> <think>2</think> "
    completion += "<answer>3</answer>"
    prompt = [{"role": "user", "content": "1+1?"}]
    Dataset.from_list([{"prompt": prompt, "completion": completion}] * 64).to_parquet(tmp_path / "rows.parquet")
    questions = Dataset.from_list([{"prompt": prompt, "images": [], "answer": "2"}] * 20)
    data = example.ReflectionArguments(
        dataset_name="rows", reflection_dataset=str(tmp_path / "rows.parquet"), sft_learning_rate=0.01
    )
    run = {"use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True, "gradient_checkpointing": False}
    args = SRPOConfig(str(tmp_path / "out"), **run, reflection_prompt=None, max_completion_length=64, top_p=0.95)
    folder = Path(example.cold_start(str(tmp_path / "policy"), questions, data, args))
    steps = json.loads((folder / "trainer_state.json").read_text())["global_step"]
    assert 0 < steps < data.sft_max_steps
    assert steps % 10 == 0  # it is looked at every ten steps
    assert "cold start" not in caplog.text
    assert learnt(*load(folder), questions, args).complete >= 0.8  # other samples of the same policy
    assert learnt(*load(tmp_path / "policy"), questions, args).complete == 0

    # the second answer of this response is wrong where its first is right
    data = replace(data, sft_min_delta=0.0, sft_max_steps=steps + 20)
    folder = Path(example.cold_start(str(tmp_path / "policy"), questions, data, args))
    assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == steps + 20
    told = rf"acc@t2 - acc@t1 -\d+ points after {steps + 20} steps, expected 95% and \+0 or more"
    assert re.search(told, caplog.text)


@pytest.mark.parametrize("settings", [{"sft_complete_share": 95}, {"sft_max_steps": 0}, {"sft_min_delta": 5}])
def test_a_cold_start_that_cannot_end_is_refused(settings):
    with pytest.raises(ValueError, match="expected a share from 0 to 1, a delta from -1 to 1 and at least one step"):
        load_example("srpo").ReflectionArguments(dataset_name="miniature/adding", **settings)


def test_srpo_refuses_a_cold_start_of_an_adapter(checkpoints, tmp_path):
    data = load_example("srpo").ReflectionArguments(dataset_name="miniature/adding", reflection_dataset="miniature")
    args = SRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    policy = ModelConfig(model_name_or_path=checkpoints("qwen2_5_vl"), use_peft=True)
    with pytest.raises(ValueError, match="use_peft is for RL, but reflection_dataset='miniature'"):
        load_example("srpo").main(data, args, policy)


def fine_tune(recipe, model, tmp_path, row):
    """Supervised training by a paper's recipe, on eight equal rows in batches of four; the loss of two is measured."""
    rows = Dataset.from_list([{**row, "images": [Image.new("RGB", (28, 28))]}] * 8)
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.select(range(2)).to_parquet(tmp_path / "asked.parquet")
    settings = {
        "config": ROOT / f"configs/{recipe}.yaml",
        "model_name_or_path": model,
        "dataset_name": tmp_path / "rows.parquet",
        "eval_dataset_name": tmp_path / "asked.parquet",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        # what a GPU is needed for
        "use_cpu": "true",
        "bf16": "false",
        "dtype": "float32",
        "attn_implementation": "sdpa",
        "report_to": "none",  # nor is trackio needed
    }
    arguments = [str(part) for key, value in settings.items() for part in (f"--{key}", value)]
    done = start(recipe.partition("/")[0], tmp_path / "out", *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((tmp_path / "out/trainer_state.json").read_text())
    measured = {entry["step"]: entry["eval_loss"] for entry in state["log_history"] if "eval_loss" in entry}
    # before training, and after every step: a tenth of so few is less than one
    assert list(measured) == list(range(state["max_steps"] + 1))
    assert measured[state["max_steps"]] < measured[0]  # it is trained on these rows
    begun, final = weights(model), weights(tmp_path / "out")
    changed = {name for name, weight in final.items() if not torch.equal(weight, begun[name])}
    assert changed
    return changed


@pytest.mark.full
def test_star_s_training_with_the_settings_of_the_paper(checkpoints, tmp_path):
    """On a revision behind a wrong answer, as `mmreason revise` writes it; two epochs of two steps."""
    said = [("user", "1+1?"), ("assistant", "3"), ("user", "Check it.")]
    completion = [{"role": "assistant", "content": "2"}]
    row = {"prompt": [{"role": role, "content": text} for role, text in said], "completion": completion}
    fine_tune("sft/qwen2_5_vl_7b_star", checkpoints("qwen2_5_vl"), tmp_path, row)
    state = json.loads((tmp_path / "out/trainer_state.json").read_text())
    rates = [entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry]
    # a tenth of four steps is one step of warm-up, from 0 to 2e-5; then in three steps back to 0
    assert rates == pytest.approx([0.0, 2e-5, 2e-5 * 2 / 3, 2e-5 / 3])


@pytest.mark.full
def test_the_cold_start_by_itself_with_the_settings_of_the_paper(checkpoints, tmp_path):
    completion = "<think>1+1=2</think> <answer>2</answer> <reflection>Not so.</reflection> <answer>3</answer>"
    row = {"prompt": [{"role": "user", "content": "1+1?"}], "completion": completion}
    changed = fine_tune("reflection_sft/qwen2_5_vl_7b", checkpoints("qwen2_5_vl"), tmp_path, row)
    assert "2506.01713" in (tmp_path / "out/README.md").read_text()
    assert not [name for name in changed if name.startswith("visual.")]  # the configuration freezes the encoder


@pytest.mark.full
def test_local_rows_of_which_one_is_bad(checkpoints, tmp_path):
    (tmp_path / "pictures").mkdir()
    rows = []
    for number in range(4):
        Image.new("RGB", (28, 28), (60 * number, 0, 0)).save(tmp_path / f"pictures/{number}.png")
        row = {"id": f"shape {number}", "prompt": "How many circles?", "images": [f"pictures/{number}.png"]}
        rows.append({**row, "answer": str(number)})
    rows[2]["images"] = ["pictures/lost.png"]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))

    source = ["--dataset_name", file, "--eval_dataset_name", file, "--eval_split", "train"]
    done = run("adapo", checkpoints("qwen2_5_vl"), tmp_path / "out", *source)
    assert "rows: 1 of 4 rows cannot be used and were left out (1 × missing image file)" in done.stderr
    assert "row 2 (id 'shape 2'), column 'images': missing image file" in done.stderr
    assert f"AdaPO on {file} (train): 3 questions" in (tmp_path / "out/report.html").read_text()


@pytest.mark.full
def test_the_launcher_s_cpu_file_is_enough_to_run_a_recipe(checkpoints, tmp_path):
    """The recipe of the paper asks for bf16 and vLLM; its images, its policy and its size alone are replaced."""
    Dataset.from_list(drawn_rows(8)).to_parquet(tmp_path / "rows.parquet")
    smaller = {
        "model_name_or_path": checkpoints("qwen2_5_vl"),
        "dataset_name": tmp_path / "rows.parquet",
        "eval_dataset_name": tmp_path / "rows.parquet",
        "eval_split": "train",
        "eval_rows": 2,
        "report_to": "none",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "max_completion_length": 6,
        "max_steps": 1,
        "learning_rate": 0,  # a random policy earns nothing
    }
    options = [part for key, value in smaller.items() for part in (f"--{key}", value)]
    launcher = [*ACCELERATE, "--config_file", str(ROOT / "configs/accelerate/cpu.yaml")]
    recipe = ["--config", ROOT / "configs/adapo/qwen2_5_vl_7b.yaml"]
    done = start("adapo", tmp_path / "out", *recipe, *options, launcher=launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    for setting in ("bf16", "use_vllm"):
        assert f"AdaPOConfig: {setting}=True is switched off, as accelerate was told to train on a CPU" in done.stderr
    assert (tmp_path / "out/model.safetensors").is_file()


@pytest.mark.full
def test_two_processes_print_one_table(checkpoints, tmp_path):
    folder = tmp_path / "out"
    halved = ("--per_device_train_batch_size", 8)
    done = run("adapo", checkpoints("qwen2_5_vl"), folder, *halved, launcher=TWO_PROCESSES)
    # `Trainer` saves the random state of each process: there were two.
    states = sorted(path.name for path in (folder / "checkpoint-2").glob("rng_state*"))
    assert states == ["rng_state_0.pth", "rng_state_1.pth"]
    assert_everything_is_there(done, folder, "AdaPO")
