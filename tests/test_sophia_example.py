"""examples/sophia.py as users start it: every stage with a tiny model, again, and with what it refuses."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from chat_stub import Handler, chat_stub
from datasets import Dataset, Features, Image, List, Value
from safetensors.torch import load_file
from test_configs import load_example
from trl import ModelConfig, TrlParser

from trl_mmreason.miniature.captions import DESCRIBE, caption
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import plain, solve
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.sampling.store import SettingsChanged, Store
from trl_mmreason.sophia.config import MixedGroupsGRPOConfig, OffPolicyRewardConfig
from trl_mmreason.sophia.prompts import THINKING_PROMPT

ROOT = Path(__file__).parents[1]
SETTINGS = {
    "dataset_name": "miniature/adding",
    "train_rows": 8,
    "eval_dataset_name": "miniature/adding",
    "eval_split": "new_pictures",
    "eval_rows": 4,
    "thinking_prompt": "Think in tags.",
    "max_completion_length": 40,
    "sampling_batch_size": 32,
    "dtype": "float32",
    "common": {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none"}
    | {"save_strategy": "no", "logging_steps": 1, "disable_tqdm": True},
    "reasoner": "rule",
    "drawn_problems": 6,
    "sampling": {"captions": 2, "trajectories": 4, "threshold": 0.7, "caption_tokens": 30, "tokens": 64},
    "variants": {"sophia": {}, "random": {"rule": "random"}, "keep-8": {"keep": 8}},
    "warm_up": {"num_train_epochs": 100, "learning_rate": 2e-3, "per_device_train_batch_size": 12}
    | {"sequence_reduction": "mean", "trainable_parts": ["vision", "projector", "language"]},
    "update": {"num_train_epochs": 1, "learning_rate": 1e-3, "per_device_train_batch_size": 2},
    "difficulty": {"n": 2, "low": 0.0, "high": 1.0},
    "grpo": {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8},
    "evaluation": {"temperature": 0.0},
}


def start(folder, *options):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_DATASETS_CACHE": str(folder.parent / "cache")}
    command = [sys.executable, str(ROOT / "examples/sophia.py"), "--config", str(folder.parent / "small.yaml")]
    return subprocess.run(
        [*command, "--output_dir", str(folder), *map(str, options)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """The warm-up shows the policy the very pictures that it will describe, so that its captions are good."""
    folder = tmp_path_factory.mktemp("sophia") / "out"
    model, processor = build_model("qwen2_5_vl", "test", in_steps=True)
    model.save_pretrained(folder.parent / "base")
    processor.save_pretrained(folder.parent / "base")
    rows = [
        {"prompt": prompt, "completion": said, "images": [problem.image]}
        for problem in make_problems(["adding"], 6, seed=2)
        for prompt, said in (
            ([{"role": "user", "content": DESCRIBE}], caption(problem)),
            (problem.prompt, plain(solve(problem))),
        )
    ]
    message = List({"role": Value("string"), "content": Value("string")})
    features = Features({"prompt": message, "completion": Value("string"), "images": List(Image())})
    Dataset.from_list(rows, features=features).to_parquet(folder.parent / "warm_up.parquet")
    settings = {
        "model_name_or_path": str(folder.parent / "base"),
        "warm_up_dataset": str(folder.parent / "warm_up.parquet"),
        **SETTINGS,
    }
    (folder.parent / "small.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    done = start(folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, done


def test_every_stage_leaves_its_result_and_the_table_names_all(whole_run):
    folder, done = whole_run
    table = (folder / "table.txt").read_text()
    assert table.strip() in done.stdout
    names = ["before", "sophia", "random", "keep-8", "sophia + GRPO", "base + GRPO"]
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == names
    results = json.loads((folder / "results.json").read_text())
    assert list(results) == names
    assert results["before"][0]["rows"] is None
    assert results["random"][0]["rows"] == 6  # one a question
    assert results["keep-8"][0]["rows"] > results["sophia"][0]["rows"] > 0
    for path in ("warm_up/model", "sophia/model", "random/model", "keep-8/model", "grpo/model", "base_grpo/model"):
        assert (folder / "seed-0" / path / "model.safetensors").exists(), path
    for picture in ("accuracy.png", "seed-0/sophia/curves.png", "seed-0/grpo/curves.png"):
        assert (folder / picture).read_bytes().startswith(b"\x89PNG")


def test_captions_know_no_question_and_rows_no_caption(whole_run):
    """In what was really sampled and written: the policy was asked one thing only, and no prompt holds a caption."""
    folder, _ = whole_run
    with Store(folder / "seed-0/trajectories.sqlite") as store:
        assert store.stages()["sophia-captions"]["prompt"] == DESCRIBE
        captions = {record.payload["text"] for record in store.records("sophia-captions")}
    assert captions
    for variant in ("sophia", "random", "keep-8"):
        rows = Dataset.from_parquet(str(folder / f"seed-0/{variant}.parquet"))
        for row in rows:
            assert [message["role"] for message in row["prompt"]] == ["system", "user"]
            assert row["prompt"][0]["content"] == "Think in tags."
            assert not any(said and said in json.dumps(row["prompt"]) for said in captions)
            assert "digit is" not in row["prompt"][1]["content"]
            assert row["completion"].startswith("<think>") or "<think>" in row["completion"]
            assert row["reward"] == 1.0
            assert row["images"]


def test_what_is_finished_is_not_done_again(whole_run):
    folder, done = whole_run
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = start(folder)
    assert again.returncode == 0, again.stderr[-3000:]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    assert (folder / "table.txt").read_text().strip() in again.stdout


def test_other_settings_are_refused(whole_run):
    folder, _ = whole_run
    run = run_of(folder, "--output_dir", folder)
    run.args.update["beta"] = 0.1
    with pytest.raises(SettingsChanged, match="stage 'update' was begun with other settings"):
        run.do("update")


def run_of(folder, *options):
    """A run in this process, with the settings of the whole one."""
    example = load_example("sophia")
    given = ["--config", str(folder.parent / "small.yaml"), *map(str, options)]
    return example.Run(*TrlParser((example.SophiaArguments, ModelConfig)).parse_args_and_config(given), 0)


@pytest.mark.parametrize(
    ("stage", "message"),
    [("trajectories", "warm_up writes"), ("update", "trajectories writes"), ("grpo", "update writes")],
)
def test_a_stage_out_of_order_names_the_one_before(stage, message, whole_run, tmp_path):
    folder, _ = whole_run
    with pytest.raises(FileNotFoundError, match=message):
        run_of(folder, "--output_dir", tmp_path).do(stage)


def test_without_a_warm_up_the_policy_that_came_is_measured(whole_run, tmp_path):
    """A path, or a Hub id, which is no path."""
    folder, _ = whole_run
    run = run_of(folder, "--output_dir", tmp_path, "--warm_up_dataset", "null")
    run.do("warm_up")
    assert list(run.results()) == ["before"]
    run = run_of(folder, "--output_dir", tmp_path, "--warm_up_dataset", "null", "--model_name_or_path", "owner/name")
    assert run.start == "owner/name"


def test_grpo_without_sophia_starts_with_the_policy_that_came(whole_run):
    """Table 1, "+GRPO". Both runs of GRPO ask the questions that this policy finds neither too easy nor too hard (B.2),
    and keep what B.1 freezes: their vision encoders are those that they began with."""
    folder, _ = whole_run

    def encoder(path):
        return {name: weight for name, weight in load_file(path / "model.safetensors").items() if "visual" in name}

    base, seed = folder.parent / "base", folder / "seed-0"
    for began, ended in ((base, seed / "base_grpo/model"), (seed / "sophia/model", seed / "grpo/model")):
        first, last = encoder(began), encoder(ended)
        assert first
        assert all(first[name].equal(weight) for name, weight in last.items())
    taught = encoder(seed / "warm_up/model")
    assert not all(taught[name].equal(weight) for name, weight in encoder(base).items())
    with Store(seed / "difficulty.sqlite") as store:
        assert store.stages()["difficulty"]["engine"]["model"] == str(base)


class Lenient(Handler):
    """A judge that reads a 7 off every text, and to whom all answers are right."""

    def answer(self, body):
        asks_for_an_answer = body["messages"][-1]["content"].endswith("Extracted answer:")
        self.say("7" if asks_for_an_answer else "Judgement: 1")


def test_a_generative_verifier_decides_in_grpo_and_about_its_questions(whole_run, tmp_path):
    """B.2: it is asked, as by the rules some of these answers are wrong; to it none is, and no group has a contrast."""
    folder, _ = whole_run
    policy = ("--output_dir", tmp_path, "--model_name_or_path", folder / "seed-0/warm_up/model")
    policy += ("--warm_up_dataset", "null")
    with chat_stub(Lenient) as judge:
        run_of(folder, *policy, "--judge_model", "j", "--judge_server", judge.url).do("base_grpo")
        assert {body["model"] for body in judge.bodies} == {"j"}
    with Store(tmp_path / "seed-0/difficulty.sqlite") as store:
        (graded,) = [stage for stage in store.stages() if stage.startswith("difficulty-verdicts-")]
        assert all(record.payload["turns"][0]["correct"] for record in store.records(graded))
    state = json.loads((tmp_path / "seed-0/base_grpo/model/trainer_state.json").read_text())
    assert [state["log_history"][0][name] for name in ("reward", "dropped_all_right")] == [1.0, 1.0]
    with pytest.raises(SettingsChanged, match="stage 'base_grpo' was begun with other settings"):
        run_of(folder, *policy).do("base_grpo")


def test_captions_are_data_if_asked_for(whole_run, tmp_path):
    """Table A2, DI: the update has a step for every two rows, and the captions with all trajectories right are rows."""
    folder, _ = whole_run
    rows = folder / "seed-0/sophia.parquet"
    made = Dataset.from_parquet(str(rows))
    right = sum(reward == 1 for reward in made["caption_reward"])
    assert right
    run = run_of(folder, "--output_dir", tmp_path, "--warm_up_dataset", "null", "--captions_as_data", "beside")
    run.args.variants = {"sophia": {}}
    run.folder.mkdir()
    shutil.copy(rows, tmp_path / "seed-0/sophia.parquet")
    run.do("update")
    state = json.loads((tmp_path / "seed-0/sophia/model/trainer_state.json").read_text())
    assert state["global_step"] == (len(made) + right + 1) // 2


@pytest.mark.parametrize("size", ["8b", "38b"])
def test_the_recipe_is_the_paper_s(size, tmp_path):
    """Appendices B and C; eight processes."""
    example = load_example("sophia")
    given = ["--config", str(ROOT / f"configs/sophia/internvl3_{size}.yaml")]
    args, _ = TrlParser((example.SophiaArguments, ModelConfig)).parse_args_and_config(given)
    args.common |= {"use_cpu": True, "bf16": False}
    update, grpo = (
        args.config("update", OffPolicyRewardConfig, tmp_path),
        args.config("grpo", MixedGroupsGRPOConfig, tmp_path, max_completion_length=args.max_completion_length),
    )
    for config, rate in ((update, 2e-5), (grpo, 5e-7)):
        assert (config.learning_rate, config.weight_decay, config.optim, config.beta) == (rate, 0.05, "adamw_torch", 0)
        assert (config.lr_scheduler_type, config.lr_scheduler_kwargs["min_lr_rate"]) == ("cosine_with_min_lr", 0.25)
        assert config.trainable_parts == ["language"]
        assert 8 * config.per_device_train_batch_size * config.gradient_accumulation_steps == 512  # 64 questions · 8
    assert (grpo.num_generations, grpo.max_completion_length, grpo.max_steps) == (8, 16384, 480)
    assert args.judge_model == "Qwen/Qwen2.5-72B-Instruct"
    assert args.difficulty == {"n": 16, "low": 0.4, "high": 0.6}
    assert args.evaluation == {"temperature": 1.0, "top_p": 0.8}
    assert (args.captions_as_data, args.thinking_prompt) == ("none", THINKING_PROMPT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stages": "sft"}, "there is no 'sft'; expected warm_up,trajectories,update,grpo,base_grpo"),
        ({"variants": {"before": {}}}, "'before' cannot be a variant's name"),
        ({"variants": {"../x": {}}}, "'../x' cannot be a variant's name"),
        ({"variants": {"base_grpo": {}}}, "'base_grpo' cannot be a variant's name"),
        ({"reasoner": "r1"}, "reasoner='r1', expected one of model, rule"),
        ({"captions_as_data": "behind"}, "captions_as_data='behind', expected one of none, beside, before"),
        ({"judge_server": "http://127.0.0.1:1"}, "judge_server='http://127.0.0.1:1' came without judge_model"),
        (
            {"trajectory_dataset": "rows.parquet", "variants": {"a": {"keep": 2}}},
            "the rows of rows.parquet were selected already",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        load_example("sophia").SophiaArguments(dataset_name="miniature/adding", **settings)
