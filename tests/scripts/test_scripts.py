import json
import re
import runpy
import sys
from pathlib import Path

import pytest
import yaml
from all_families import FAMILIES
from datasets import Dataset
from example_runs import ROOT
from peft import get_peft_model
from support import FAMILY_NAMES, ParityGrader, adapo_config, changed_weights, drawn_rows, full_but, weights_of
from text_reasoners import REASONERS as TEXT_ONLY
from text_reasoners import saved_reasoner
from trl import ModelConfig, TrlParser

from trl_mmreason import AdaPOConfig, AdaPOTrainer
from trl_mmreason.adapo.recipe import two_answers
from trl_mmreason.compat.model_parts import parts_of
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.generation.server_engine import ServerEngine
from trl_mmreason.grading import Grader
from trl_mmreason.miniature.models import build_model
from trl_mmreason.scripts.comparison import train_and_compare
from trl_mmreason.scripts.refusals import WrongArgument, exit_on_refusal
from trl_mmreason.scripts.script_parser import ScriptParser
from trl_mmreason.scripts.sections import setting_faults
from trl_mmreason.scripts.single_stage import (
    AGAIN,
    LORA_TARGETS,
    DataArguments,
    compared_rows,
    load_data,
    load_split,
    policy_path,
    print_end,
    trainer_settings,
)
from trl_mmreason.sophia.prompts import THINKING_PROMPT
from trl_mmreason.srpo.recipe import TAGGED_ANSWERS


def test_columns_can_be_given_on_the_command_line():
    (arguments,) = TrlParser(DataArguments).parse_args_and_config(
        ["--dataset_name", "x", "--columns", '{"prompt": "problem"}']
    )
    assert arguments.columns == {"prompt": "problem"}


def test_fewer_rows_are_a_sample_of_all_and_not_the_first(tmp_path):
    """The ablation of the amount of data: 10 of 50 rows that are ordered by their answer, and 10 to compare on."""
    rows = [{"prompt": "p", "answer": str(index)} for index in range(50)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    named = {"dataset_name": str(tmp_path / "rows.jsonl"), "eval_dataset_name": str(tmp_path / "rows.jsonl")}

    def trained_on(count, seed):
        train, asked = load_data(DataArguments(**named, eval_split="train", train_rows=count, eval_rows=10), seed)
        assert len(asked) == 10
        return {int(answer) for answer in train["answer"]}

    few, more = trained_on(10, seed=1), trained_on(30, seed=1)
    assert len(few) == 10
    assert max(few) > 20
    assert few < more
    assert few != trained_on(10, seed=2)


@pytest.mark.parametrize("split", ["new_pictures", "heldout"])
def test_drawn_questions_for_the_comparison_are_not_those_of_training(split):
    arguments = DataArguments(dataset_name="miniature/adding")
    trained = load_split(arguments, "miniature/adding", "train", 50, seed=3)
    asked = load_split(arguments, "miniature/adding", split, 50, seed=3)
    images = [{row["images"][0].tobytes() for row in rows} for rows in (trained, asked)]
    assert [len(each) for each in images] == [50, 50]
    assert not images[0] & images[1]


def test_local_rows_with_other_names(tmp_path):
    rows = [{"problem": row["prompt"][0]["content"], "solution": row["answer"]} for row in drawn_rows(3)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    arguments = DataArguments(dataset_name=str(file), columns={"prompt": "problem", "answer": "solution"})
    loaded = load_split(arguments, str(file), "train", 3, seed=0)
    assert loaded["answer"][:] == [row["solution"] for row in rows]


def test_a_system_prompt_may_be_a_name_or_in_a_file(tmp_path):
    (tmp_path / "prompt.txt").write_text("Think.\n")
    given = DataArguments("x", system_prompt=str(tmp_path / "prompt.txt"), eval_system_prompt="Answer.")
    assert (given.system_prompt, given.eval_system_prompt) == ("Think.", "Answer.")
    assert DataArguments("x", system_prompt="sophia").system_prompt == THINKING_PROMPT
    assert DataArguments("x", eval_system_prompt="sophia").eval_system_prompt == THINKING_PROMPT
    assert DataArguments("x", system_prompt="null").system_prompt is None
    assert DataArguments("x", system_prompt="/no_think").system_prompt == "/no_think"
    with pytest.raises(ValueError, match=r"^system_prompt ./none.txt: there is no such file"):
        DataArguments("x", system_prompt="./none.txt")


def test_what_cannot_be_meant_is_refused(tmp_path):
    with pytest.raises(ValueError, match="on_error='stop', expected drop or raise"):
        DataArguments(dataset_name="x", on_error="stop")
    with pytest.raises(ValueError, match="train_rows=None, eval_rows=0, expected at least 1"):
        DataArguments(dataset_name="x", eval_rows=0)
    with pytest.raises(ValueError, match=r"is not JSON \(Expecting .*\); write it as"):
        DataArguments(dataset_name="x", columns="{'prompt': 'problem'}")
    with pytest.raises(ValueError, match="is not JSON .`answer` comes twice"):
        DataArguments(dataset_name="x", columns='{"answer": "answer", "answer": "id"}')
    assert DataArguments(dataset_name="x", eval_dataset_name="null").eval_dataset_name is None


@pytest.mark.parametrize("name", ["miniature/qwen2_5_vl", "miniature/foo/demo", "miniature/internvl/huge"])
def test_a_miniature_that_does_not_exist_is_refused(tmp_path, name):
    arguments = DataArguments(dataset_name="miniature/adding")
    with pytest.raises(ValueError, match="expected miniature/<family>/<size>"):
        policy_path(arguments, ModelConfig(model_name_or_path=name), adapo_config(tmp_path), TAGGED_ANSWERS)


def test_a_miniature_on_other_data_is_refused(tmp_path):
    arguments = DataArguments(dataset_name="data/train.jsonl")
    policy = ModelConfig(model_name_or_path="miniature/internvl/test")
    with pytest.raises(ValueError, match="dataset_name='data/train.jsonl'"):
        policy_path(arguments, policy, adapo_config(tmp_path), TAGGED_ANSWERS)


@pytest.mark.parametrize(
    ("name", "split"), [("miniature/addng", "train"), ("miniature/adding", "test"), ("miniature/", "train")]
)
def test_drawn_questions_that_do_not_exist_are_refused_in_a_line(name, split):
    expected = rf"^{name}, split {split}: expected miniature/<category> with a category of adding, .* of train, heldout"
    with pytest.raises(WrongArgument, match=expected):
        load_split(DataArguments(dataset_name=name), name, split, 2, seed=0)


def test_the_comparison_has_the_usual_split_by_default():
    def split(name, **given):
        return DataArguments(dataset_name="x", eval_dataset_name=name, **given).eval_split

    assert [split("miniature/adding"), split("owner/name"), split(None)] == ["new_pictures", "test", "test"]
    assert split("miniature/adding", eval_split="heldout") == "heldout"


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", FAMILY_NAMES))
def test_an_adapter_is_for_the_language_model_s_projections_by_default(family, tmp_path):
    """7 a layer, of 2 layers. PEFT has no default of its own for these families."""
    args = ModelConfig(model_name_or_path="m", use_peft=True)
    model = get_peft_model(
        build_model(family, "test")[0], trainer_settings(args, adapo_config(tmp_path))["peft_config"]
    )
    adapted = {name for name, _ in model.named_parameters() if "lora_A" in name}
    assert len(adapted) == 14
    assert all(".language_model.layers." in name for name in adapted)


@pytest.mark.parametrize("kind", TEXT_ONLY)
def test_a_text_only_policy_trains_an_adapter_by_default(kind, tmp_path):
    """A Qwen2 or a Llama, whose layers are `model.layers.N`: a real step changes the 14 adapters."""
    policy = saved_reasoner(kind, tmp_path / "policy")
    rows = [{"prompt": [{"role": "user", "content": f"{n}+1?"}], "answer": str(n + 1)} for n in range(4)]
    asked = {"filter_zero_advantage": False, "filter_truncated": False, "max_steps": 1}
    args = adapo_config(tmp_path / "out", **asked)
    settings = trainer_settings(ModelConfig(model_name_or_path=policy, use_peft=True), args)
    trainer = AdaPOTrainer(policy, args=args, train_dataset=Dataset.from_list(rows), grader=ParityGrader(), **settings)
    before = weights_of(trainer.model)
    trainer.train()
    changed = changed_weights(trainer.model, before)
    assert len(changed) == 14
    assert all("model.layers." in name and "lora_B" in name for name in changed)  # A follows from the second step on


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", FAMILY_NAMES))
def test_the_default_of_an_adapter_is_for_the_layers_of_the_recipes(family):
    recipe = yaml.safe_load((ROOT / "configs/adapo/your_model.yaml").read_text())["lora_target_modules"]
    names = [name for name, _ in build_model(family, "test")[0].named_modules()]
    by_recipe, by_default = ([name for name in names if re.fullmatch(x, name)] for x in (recipe, LORA_TARGETS))
    assert by_default == by_recipe
    assert len(by_default) == 14


@pytest.mark.parametrize("family", full_but("idefics3", [*FAMILIES]))
def test_the_default_of_an_adapter_is_for_language_layers_of_every_family(family):
    model = FAMILIES[family]()[0]
    part = parts_of(model)
    adapted = [name for name, _ in model.named_modules() if re.fullmatch(LORA_TARGETS, name)]
    assert len(adapted) >= 7
    assert {part[name] for name in part for module in adapted if name.startswith(f"{module}.")} == {"language"}


def test_the_layers_that_a_user_names_come_first(tmp_path):
    def targets(**given):
        args = ModelConfig(model_name_or_path="m", use_peft=True, **given)
        return trainer_settings(args, adapo_config(tmp_path))["peft_config"].target_modules

    assert targets() == LORA_TARGETS
    assert targets(lora_target_modules=["q_proj", "v_proj"]) == {"q_proj", "v_proj"}
    assert targets(lora_target_parameters=["mlp.weight"]) is None


def test_an_adapter_of_a_script_has_no_dropout_unless_it_is_asked_for(tmp_path):
    """Beside `your_model.yaml`, which says so: TRL's default is 0.05, which parts trained and sampled policy."""

    def dropout(*given):
        flags = ["--model_name_or_path", "m", "--dataset_name", "x", "--output_dir", str(tmp_path), "--use_peft"]
        _, config, model = ScriptParser((DataArguments, AdaPOConfig, ModelConfig)).parse_args_and_config(
            [*flags, "--use_cpu", "true", "--bf16", "false", "--report_to", "none", *given]
        )
        return trainer_settings(model, config)["peft_config"].lora_dropout

    (tmp_path / "own.yaml").write_text("lora_dropout: 0.2\n")
    assert dropout() == 0
    assert dropout("--lora_dropout", "0.05") == 0.05
    assert dropout("--config", str(tmp_path / "own.yaml")) == 0.2


def parsed_model(tmp_path, *given):
    flags = ["--model_name_or_path", "m", "--dataset_name", "x", "--output_dir", str(tmp_path), "--use_cpu", "true"]
    kinds = (DataArguments, AdaPOConfig, ModelConfig)
    flags += ["--bf16", "false", "--report_to", "none", "--attn_implementation", "sdpa"]
    return ScriptParser(kinds).parse_args_and_config([*flags, *given])[2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--lora_r", "8"], "lora_r=8 is of an adapter, and without use_peft all weights are trained. Fix: --use_peft"),
        (["--use_dora", "true"], "use_dora=True is of an adapter"),
        (["--use_rslora", "true"], "use_rslora=True is of an adapter"),
        (["--lora_dropout", "0.05"], "lora_dropout=0.05 is of an adapter"),
        (["--use_peft", "false", "--lora_r", "8"], "lora_r=8 is of an adapter"),
        (["--lora_modules_to_save", "lm_head"], "lora_modules_to_save=['lm_head'] is of an adapter"),
        (
            ["--bnb_4bit_quant_type", "fp4"],
            "bnb_4bit_quant_type='fp4' is of weights in 4 bits, and load_in_4bit is off",
        ),
    ],
)
def test_what_would_change_nothing_is_refused(given, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        parsed_model(tmp_path, *given)
    assert f"error: {message}" in capsys.readouterr().err


def test_a_recipe_of_an_adapter_trains_all_weights_if_told_so(tmp_path):
    """The command of docs/training.md: the recipe's rank and layers stay in the file."""
    recipe = ["--config", "adapo/your_model.yaml"]
    assert parsed_model(tmp_path, *recipe).lora_r == 32
    assert (
        trainer_settings(parsed_model(tmp_path, *recipe, "--use_peft", "false"), adapo_config(tmp_path))["peft_config"]
        is None
    )


def test_evaluation_during_training_is_on_the_questions_of_the_comparison(tmp_path):
    args, rows = ModelConfig(model_name_or_path="m"), Dataset.from_list(drawn_rows(2))
    asked = adapo_config(tmp_path, eval_strategy="steps", eval_steps=1)
    assert trainer_settings(args, asked, rows)["eval_dataset"] is rows
    assert "eval_dataset" not in trainer_settings(args, adapo_config(tmp_path), rows)
    for settings in ({"eval_strategy": "steps", "eval_steps": 1}, {"eval_on_start": True}):
        with pytest.raises(WrongArgument, match=r"no rows to evaluate on. Fix: --eval_dataset_name"):
            trainer_settings(args, adapo_config(tmp_path, **settings))


def test_several_evaluation_sets_are_named_in_yaml_and_on_the_command_line(tmp_path):
    """Each is its own for training's evaluations; the comparison has all of them, under their names."""
    sets = {"easy": "miniature/counting", "hard": "miniature/adding"}
    asked = ["--dataset_name", "miniature/adding", "--train_rows", "4", "--eval_rows", "2"]
    (tmp_path / "own.yaml").write_text(f"eval_dataset_name: {sets}\n")
    for given in (["--config", str(tmp_path / "own.yaml")], ["--eval_dataset_name", json.dumps(sets)]):
        (data_args,) = ScriptParser((DataArguments,)).parse_args_and_config([*asked, *given])
        assert (data_args.eval_dataset_name, data_args.eval_split) == (sets, "new_pictures")
    _, loaded = load_data(data_args, seed=0)
    assert {name: len(rows) for name, rows in loaded.items()} == {"easy": 2, "hard": 2}
    config = adapo_config(tmp_path, eval_strategy="steps", eval_steps=1)
    assert trainer_settings(ModelConfig(model_name_or_path="m"), config, loaded)["eval_dataset"] is loaded
    rows = compared_rows(loaded)
    assert rows["category"][:] == ["easy", "easy", "hard", "hard"]
    assert [each.split("/")[0] for each in rows["id"]] == rows["category"][:]
    assert rows["prompt"][2] == loaded["hard"]["prompt"][0]


@pytest.mark.parametrize("sets", ['{"a/b": "x.jsonl"}', '{"easy": 3}', "{}", "{"])
def test_evaluation_sets_that_are_none_are_refused(sets):
    with pytest.raises(ValueError, match="^eval_dataset_name="):
        DataArguments("x", eval_dataset_name=sets)


def test_an_adapter_as_the_policy_is_refused(tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    with pytest.raises(WrongArgument, match=f"^model_name_or_path='{tmp_path}' holds an adapter of owner/base, expect"):
        trainer_settings(ModelConfig(model_name_or_path=str(tmp_path)), adapo_config(tmp_path))


def test_a_run_ends_with_its_output_its_pages_and_the_next_command(tmp_path, capsys):
    def said(dataset_name):
        print_end(tmp_path, dataset_name)
        return capsys.readouterr().out.replace(str(tmp_path), "RUN").splitlines()[1:]

    assert said("owner/questions") == [
        "Output: RUN",
        "Report: mmreason report RUN",
        "Next:   mmreason evaluate mathvista --model RUN",
    ]
    (tmp_path / "tokenizer_config.json").touch()  # alone it is a text-only model's, which can answer no benchmark
    assert said("owner/questions")[-1] == "Next:   mmreason evaluate mine=ROWS.jsonl --model RUN"
    (tmp_path / "processor_config.json").touch()
    assert said("owner/questions")[-1] == "Next:   mmreason evaluate mathvista --model RUN"
    assert said(str(tmp_path))[-1] == "Next:   mmreason evaluate mine=ROWS.jsonl --model RUN"  # rows of one's own
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    (tmp_path / "report.html").touch()
    assert said("miniature/adding") == [
        "Output: RUN",
        "Report: RUN/report.html",
        "Next:   mmreason evaluate miniature/adding --model owner/base --adapter RUN",
    ]
    for stage in ("sft/model", "dpo/round-2/policy", "evaluation"):
        (tmp_path / stage).mkdir(parents=True)
    (tmp_path / "evaluation/compared.html").touch()
    assert said("my.jsonl") == [
        "Output: RUN/sft/model, RUN/dpo/round-2/policy",
        "Report: RUN/report.html, RUN/evaluation/compared.html",
        "Next:   mmreason evaluate mathvista --model MODEL",
    ]


@pytest.mark.parametrize("said", ["", "training stopped at step 2 of 3; nothing is saved since out/checkpoint-1"])
def test_an_interrupted_script_says_in_a_line_what_is_saved(said, capsys):
    with pytest.raises(SystemExit) as ended, exit_on_refusal("grpo.py", again=AGAIN):
        raise KeyboardInterrupt(said)
    assert ended.value.code == 130
    assert capsys.readouterr().err == (
        f"\ngrpo.py: interrupted: {said or 'what was finished is saved'}. To go on: the same command with "
        "--resume_from_checkpoint auto\n"
    )


@pytest.mark.full
def test_a_cold_start_is_not_taken_for_another(tmp_path):
    """Every setting that decides the result gives another folder, and an equal one is not made again."""
    settings = {"dataset_name": "miniature/adding", "cold_start_accuracy": 0.0}
    policy = ModelConfig(model_name_or_path="miniature/internvl/test")
    config = adapo_config(tmp_path)
    first = policy_path(DataArguments(**settings), policy, config, two_answers("Check."))
    made = (Path(first) / "model.safetensors").stat().st_mtime_ns
    assert policy_path(DataArguments(**settings), policy, config, two_answers("Check.")) == first
    assert (Path(first) / "model.safetensors").stat().st_mtime_ns == made
    assert policy_path(DataArguments(**settings), policy, config, two_answers("Other words.")) != first
    assert policy_path(DataArguments(**settings), policy, config, TAGGED_ANSWERS) != first
    assert [folder.name for folder in Path(first).parent.glob("*.unfinished")] == []


@pytest.mark.parametrize("example", sorted(path.stem for path in ROOT.glob("examples/*.py")))
def test_a_configuration_that_is_not_there_is_said_in_a_line(example, monkeypatch, capsys):
    script = str(ROOT / f"examples/{example}.py")
    monkeypatch.setattr(sys, "argv", [script, "--config", "configs/none.yaml"])
    monkeypatch.syspath_prepend(ROOT / "examples")  # as when it is run: one may import another
    with pytest.raises(SystemExit, match="^2$"):
        runpy.run_path(script, run_name="__main__")
    assert capsys.readouterr().err.startswith(f"{example}.py: error: --config configs/none.yaml: there is no such file")


@pytest.mark.parametrize(
    ("example", "options", "message"),
    [
        ("custom_reward", ["--dataset_name", "{here}/none.jsonl"], "none.jsonl' does not exist here"),
        ("adapo", ["--dtype", "bf16"], "argument --dtype: invalid choice: 'bf16'"),
        ("adapo", ["--dataset_name", "{here}/rows.jsonl"], "is a miniature that knows only drawn problems"),
        ("adapo", ["--model_name_or_path", "{here}"], "holds no model: it has no config.json"),
        ("adapo", ["--model_name_or_path", "./nowhere"], "there is no folder ./nowhere; give one with a"),
        ("adapo", ["--dataset_name", "data/none.jsonl"], "'data/none.jsonl' does not exist here"),
        ("sft", ["--dataset_name", "no/such/folder"], "'no/such/folder' does not exist here"),
        ("adapo", ["--resume_from_checkpoint", "true"], "there is no such checkpoint; {here}/out has none"),
        ("adapo", ["--output_dir", "{here}/rows.jsonl/out"], "rows.jsonl is no folder that may be written to"),
        ("adapo", ["--config", "{here}/dtype.yaml"], "dtype: 'bf16', expected one of auto, bfloat16, float16, float32"),
        (
            "sft",
            ["--dataset_name", "{here}/rows.jsonl"],
            "rows has no column for completion: looked for ['completion', 'response', 'output', 'solution']",
        ),
        (
            "sft",
            ["--dataset_name", "{here}/rows.parquet"],
            "found ['prompt', 'answer']; name it with columns: --columns '{{\"completion\": \"…\"}}'",
        ),
        ("sft", ["--eval_dataset_name", "{here}/none.parquet"], "none.parquet' does not exist here"),
        (
            "sft",
            ["--eval_dataset_name", "{here}/made.parquet", "--eval_strategy", "no", "--eval_on_start", "false"],
            "made.parquet' has no effect with eval_strategy='no' and eval_on_start=False",
        ),
        ("sft", ["--eval_dataset_name", "null"], "there are no rows to evaluate on. Fix: --eval_dataset_name"),
    ],
)
def test_what_a_script_cannot_do_is_said_in_a_line(tmp_path, example, options, message, monkeypatch, capsys):
    rows = Dataset.from_list([{"prompt": "1 + 1?", "answer": "2"}])
    rows.to_json(tmp_path / "rows.jsonl")
    rows.to_parquet(tmp_path / "rows.parquet")
    rows.rename_column("answer", "completion").to_parquet(tmp_path / "made.parquet")
    config = ROOT / ("configs/sft/qwen2_5_vl_7b.yaml" if example == "sft" else "configs/adapo/miniature.yaml")
    (tmp_path / "dtype.yaml").write_text(config.read_text().replace("dtype: float32", "dtype: bf16"))
    capsys.readouterr()  # progress bars of writing
    given = [option.format(here=tmp_path) for option in options]
    if "--eval_dataset_name" in given:
        given += ["--dataset_name", str(tmp_path / "made.parquet")]
    script = str(ROOT / f"examples/{example}.py")
    common = [
        *([] if "--config" in given else ["--config", str(config)]),
        "--output_dir",
        str(tmp_path / "out"),
        "--use_cpu",
        "true",
        "--report_to",
        "none",
    ]
    monkeypatch.setattr(sys, "argv", [script, *common, *given])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(script, run_name="__main__")
    said = capsys.readouterr().err if ended.value.code == 2 else ended.value.code
    assert said.startswith(f"{example}.py: ")
    assert message.format(here=tmp_path) in said
    assert not (tmp_path / "out/cold_start").exists()


def test_another_number_of_answers_is_refused_before_training():
    with pytest.raises(ValueError, match="the protocol has 3 turns, expected 2"):
        train_and_compare(None, None, None, TwoTurn("Check.", turns=3))


def test_paths_in_a_recipe_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("dataset_name: ~/rows.jsonl\nmodel_name_or_path: ~/model\nsystem_prompt: ~ is about\n")
    parser = ScriptParser((DataArguments, ModelConfig))
    data, model = parser.parse_args_and_config(["--config", str(recipe), "--image_root=~/images"])
    assert [data.dataset_name, model.model_name_or_path] == [f"{tmp_path}/rows.jsonl", f"{tmp_path}/model"]
    assert (data.image_root, data.system_prompt) == (f"{tmp_path}/images", "~ is about")


def test_a_recipe_names_tolerance_and_judge():
    model = ServerEngine("judge", "http://127.0.0.1:1/v1")
    assert DataArguments("x", tolerance="0.05").rules == Grader(tolerance=0.05)
    assert DataArguments("x", tolerance="lenient").grader(None) == Grader(tolerance="lenient")
    asked = []
    judged = DataArguments("x", judge_model="judge", tolerance="0.1").grader(lambda name: asked.append(name) or model)
    assert (judged.grader, asked) == (Grader(tolerance=0.1), ["judge"])
    served = DataArguments("x", judge_model="judge", judge_server="http://127.0.0.1:1/v1").grader(None)
    assert "'kind': 'server', 'model': 'judge', 'openai_only': True" in repr(served)


def test_a_tolerance_is_a_number_in_yaml():
    assert [*setting_faults(yaml.safe_load("tolerance: 0.05"), DataArguments)] == []
    assert DataArguments("x", tolerance=0.05) == DataArguments("x", tolerance="0.05")
    with pytest.raises(ValueError, match="tolerance='5', expected strict, lenient or a share between 0 and 1"):
        DataArguments("x", tolerance=5)
    assert [name for name, _ in setting_faults({"tolerance": True, "on_error": 1}, DataArguments)] == [
        *("tolerance", "on_error")
    ]


def test_what_cannot_grade_is_refused():
    with pytest.raises(ValueError, match="tolerance='5%', expected strict, lenient or a share between 0 and 1"):
        DataArguments("x", tolerance="5%")
    with pytest.raises(ValueError, match="came without judge_model"):
        DataArguments("x", judge_server="http://127.0.0.1:1/v1")
