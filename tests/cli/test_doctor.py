"""`mmreason doctor`: what it says of versions, a configuration, memory and a model, and when it ends with 1."""

import json
import re
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from support import png, write_lines
from text_reasoners import saved_reasoner
from trl import GRPOConfig

from trl_mmreason.cli.commands.train import SCRIPTS
from trl_mmreason.cli.doctor.machine import check_contract, check_packages, pinned_versions
from trl_mmreason.cli.doctor.model import check_conversation
from trl_mmreason.cli.doctor.settings import check_method, check_rows, check_settings, read_settings
from trl_mmreason.cli.main import main
from trl_mmreason.miniature.models import build_model
from trl_mmreason.scripts.recipes import ROOT
from trl_mmreason.scripts.single_stage import LORA_TARGETS

(OPENAI,) = (one.specifier for one in map(Requirement, requires("trl-mmreason")) if one.name == "openai")
TESTED = {"torch": "2.13.0", "transformers": "5.23.0", "trl": "1.16.0", "vllm": None, "deepspeed": None}


def levels(findings):
    return {str(finding).split()[1].rstrip(":"): finding.level for finding in findings}


def settings_of(tmp_path, kinds=None, /, **given):
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(given))
    return read_settings(str(path), kinds)


def test_stages_have_their_own_settings_over_the_common_ones(tmp_path):
    """Of each section that configures a trainer, also without a learning rate of its own."""
    sections = {"sft": {"optim": "adamw_8bit"}, "grpo": None, "other": {"n": 2}}
    kinds = {"sft": GRPOConfig, "grpo": GRPOConfig, "later": GRPOConfig}
    common, stages = settings_of(tmp_path, kinds, common={"bf16": False, "optim": "sgd"}, **sections)
    assert set(stages) == {"sft", "grpo"}
    assert stages["grpo"]["optim"] == "sgd"
    assert (stages["sft"]["optim"], stages["sft"]["bf16"], common["optim"]) == ("adamw_8bit", False, "sgd")


# ------------------------------------------------------------------------------------------------------------- versions


def test_the_pinned_versions_are_those_of_the_constraints():
    assert pinned_versions("constraints.txt")["trl"] == TESTED["trl"]
    assert pinned_versions("constraints-engines.txt")["vllm"] == "0.31.0"


def test_pinned_versions_are_fine():
    assert {finding.level for finding in check_packages(TESTED)} == {"ok"}


def test_a_version_between_those_that_were_tested_is_noted_and_one_outside_fails_with_its_known_problems():
    found = levels(check_packages({**TESTED, "transformers": "5.20.0"}))
    assert (found["transformers"], found["trl"]) == ("note", "ok")
    other, changes = {**TESTED, "trl": "1.17.0", "openai": "1.9.0"}, {"trl": ["one", "another"]}
    assert [str(finding) for finding in check_packages(other, changes) if finding.level == "FAIL"] == [
        'FAIL  trl 1.17.0: not tested, 2 known problems; <1.17,>=1.16 is required. Fix: pip install "trl<1.17,>=1.16"',
        f'FAIL  openai 1.9.0: not tested, 0 known problems; {OPENAI} is required. Fix: pip install "openai{OPENAI}"',
    ]
    changed, kept = check_contract({"trl": ["GRPOTrainer._generate is gone"], "transformers": []})
    assert str(changed) == 'FAIL  trl: GRPOTrainer._generate is gone. Fix: pip install "trl<1.17,>=1.16"'
    assert kept.level == "ok"


@pytest.mark.parametrize(("transformers", "level"), [("5.17.0", "ok"), ("5.23.0", "note")])
def test_the_versions_beside_an_engine_are_those_of_the_engine_tests(transformers, level):
    """A vLLM built for CPUs says so behind its version."""
    found = levels(check_packages({**TESTED, "transformers": transformers, "vllm": "0.31.0+cpu"}))
    assert (found["vllm"], found["transformers"]) == ("ok", level)


# ---------------------------------------------------------------------------------------------------------------- model


def check(processor):
    return list(map(str, check_conversation(processor, [processor.tokenizer.eos_token_id])))


def test_every_family_holds_two_turns(family):
    found = check(build_model(family, "test")[1])
    assert [line.split()[0] for line in found] == ["ok"] * 3


IMAGES = "{% for turn in messages %}{% for part in turn['content'] %}{% if part['type'] == 'image' %}<|image_pad|>"
THE_REST = "{% endif %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ raise_exception('no') }}", "FAIL  a question with an image cannot be written: no Fix: use a checkpoint"),
        # forgets what was said before
        (
            IMAGES + THE_REST + "{{ messages[-1]['content'][-1]['text'] }}",
            "FAIL  two turns (AdaPO, SCoRe, two-turn evaluation): next_turn_ids: the chat template does not show",
        ),
        (
            IMAGES + "{% else %}{{ part['text'].split('</think>')[-1] }}<|im_end|>{% endif %}{% endfor %}{% endfor %}",
            "note  supervised training on thoughts: the chat template changes the assistant's text",
        ),
    ],
    ids=["refuses", "forgets", "drops thoughts"],
)
def test_what_a_template_cannot_hold_is_named(template, expected):
    _, processor = build_model("qwen2_5_vl", "test")
    processor.chat_template = template
    assert [line for line in check(processor) if not line.startswith("ok")][0].startswith(expected)


# -------------------------------------------------------------------------------------------------------------- command

TRAINABLE = {"model_name_or_path": "miniature/qwen2_5_vl/test", "use_cpu": True, "bf16": False, "report_to": "none"}
TRAINABLE |= {"dataset_name": "miniature/adding", "output_dir": "runs"}


def doctor(capsys, *arguments):
    """Status and lines."""
    status = None
    try:
        main(["doctor", *map(str, arguments)])
    except SystemExit as ended:
        status = ended.code
    return status, capsys.readouterr().out.splitlines()


def test_a_machine_and_a_miniature_recipe_are_fine(capsys):
    status, lines = doctor(capsys, "--config", "adapo/miniature.yaml")
    assert status is None
    assert {line.split()[0] for line in lines} <= {"ok", "note"}
    assert any("a second turn follows the first answer" in line for line in lines)
    assert lines[-1].startswith("ok    training: 0.5 M parameters, 0.5 M trained; GiB per GPU")


def test_an_adapter_without_named_layers_is_counted_as_it_is_trained(tmp_path, capsys):
    given, memory = {**TRAINABLE, "use_peft": True}, []
    for targets in ({}, {"lora_target_modules": LORA_TARGETS}):
        (tmp_path / "config.yaml").write_text(json.dumps({**given, **targets}))
        status, lines = doctor(capsys, "--config", tmp_path / "config.yaml")
        assert status is None
        memory.append([line for line in lines if "M trained" in line])
    assert memory[0] == memory[1] != []


def test_stages_of_chain_of_step_that_train_whole_models_are_counted_without_the_adapter(tmp_path, capsys):
    """An adapter of the whole language model has fewer weights than the model."""
    recipe = (ROOT / "configs/chain_of_step/your_model.yaml").read_text()
    given = {**yaml.safe_load(recipe), "model_name_or_path": "miniature/qwen2_5_vl/test"}
    for stage in ("sft", "prm"):
        given[stage]["freeze_vision_encoder"] = False
    assert given["use_peft"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(given))
    _, lines = doctor(capsys, "--config", tmp_path / "config.yaml")
    pattern = r"ok +(\w+): (\S+ M) parameters, (\S+ M) trained"
    counted = {stage: parts for line in lines for stage, *parts in re.findall(pattern, line)}
    whole = {stage: parameters == trained for stage, (parameters, trained) in counted.items()}
    assert whole == {"sft": True, "prm": True, "dpo": False, "grpo": False}


def test_what_will_not_work_is_named_with_its_fix(checkpoints, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    asked = {"use_vllm": True, "report_to": "none", "dataset_name": "./lost.jsonl", "bf16": False, "use_cpu": True}
    config.write_text(json.dumps({"model_name_or_path": checkpoints("qwen2_5_vl"), **asked}))
    status, lines = doctor(capsys, "--config", config)
    assert status == "mmreason doctor: 2 of these will not work"
    assert [line for line in lines if line.startswith("FAIL")] == [
        "FAIL  dataset_name: there is no ./lost.jsonl. Fix: write it, or name another file or a Hub id.",
        'FAIL  training: use_vllm: vllm is not installed. Fix: pip install "trl-mmreason[vllm]", or --use_vllm false.',
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "lost.yaml"], "--config lost.yaml: there is no such file, and no recipe of that name"),
        (["--model", "miniature/qwen2_5_vl/huge"], "huge', expected miniature/<family>/<size> with a family of"),
        (["--model", "./lost"], "FAIL  there is no folder ./lost; give one with a model, or a Hub id"),
        (["--config", "rows.jsonl"], "rows.jsonl is not YAML: expected '<document start>'"),
    ],
)
def test_what_is_not_there_fails_in_a_line(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "1 + 1?"}\n{"prompt": "2 + 2?"}\n')
    status, lines = doctor(capsys, *arguments)
    assert status == "mmreason doctor: 1 of these will not work"
    assert lines[-1].startswith("FAIL  ")
    assert message in lines[-1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dtype": "bf16"}, "adapo: dtype: 'bf16', expected one of auto, bfloat16, float16, float32"),
        (
            {"per_device_train_batch_size": "four"},
            "adapo: argument --per_device_train_batch_size/--per-device-train-batch-size: invalid int value: 'four'",
        ),
        ({"lerning_rate": 1}, "adapo: CONFIG: there is no `lerning_rate`; did you mean `learning_rate`?"),
        ({"num_generations": 7}, "adapo: generation_batch_size (8) must be divisible by num_generations (7)"),
        ({"filter_truncated": True, "epsilon": "wide"}, "adapo: argument --epsilon: invalid float value: 'wide'"),
    ],
)
def test_values_that_training_cannot_read_fail_in_a_line(given, message, tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({**TRAINABLE, **given}))
    status, lines = doctor(capsys, "--config", config)
    assert status == "mmreason doctor: 1 of these will not work"
    assert [line for line in lines if line.startswith(f"FAIL  {message}".replace("CONFIG", str(config)))]
    assert lines[-1].startswith("ok")  # the model is still looked at


def test_a_fix_is_written_as_the_configuration_takes_it(tmp_path):
    """A staged one takes `--SECTION.NAME VALUE`."""
    kinds = {"sft": GRPOConfig}
    _, stages = settings_of(tmp_path, kinds, common={"report_to": "wandb", "bf16": True}, sft={"use_vllm": True})
    found = [finding.fix for finding in check_settings(stages["sft"], "sft")]
    assert 'pip install "trl-mmreason[vllm]", or --sft.use_vllm false.' in found
    assert torch.cuda.is_available() or found[-1].startswith("--common.bf16 false --common.use_cpu true")
    _, stages = settings_of(tmp_path, kinds, vllm={"max_model_len": 64}, sft=None)
    assert 'pip install "trl-mmreason[vllm]", or --vllm null.' in [
        finding.fix for finding in check_settings(stages["sft"], "sft")
    ]


FLASH = "FAIL  training: attn_implementation: flash_attn is not installed. Fix: pip install flash-attn, or "


@pytest.mark.parametrize(
    ("installed", "expected"), [("kernels", []), ("vllm", [f"{FLASH}--attn_implementation sdpa."])]
)
def test_flash_attention_comes_from_the_package_kernels_too(installed, expected, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trl_mmreason.compat.packages.find_spec", lambda name: name if name == installed else None)
    given = {**TRAINABLE, "attn_implementation": "flash_attention_2"}
    assert failures(capsys, tmp_path / "config.yaml", given) == expected


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_missing_deepspeed_is_named_as_training_names_it(tmp_path, capsys):
    (tmp_path / "ds.json").write_text("{}")
    asked = {"deepspeed": str(tmp_path / "ds.json")}
    said = 'deepspeed: deepspeed is not installed. Fix: pip install "trl-mmreason[deepspeed]", or leave'
    config = tmp_path / "config.yaml"
    assert failures(capsys, config, {**TRAINABLE, **asked}) == [f"FAIL  training: {said} --deepspeed out."]
    section = {"learning_rate": 1, **asked}
    assert failures(capsys, config, staged(sft=section)) == [f"FAIL  sft: {said} --sft.deepspeed out."]


def failures(capsys, config, given):
    config.write_text(json.dumps(given))
    _, lines = doctor(capsys, "--config", config)
    return [line for line in lines if line.startswith("FAIL")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"report_to": "wandbb"}, "adapo: AdaPOConfig: report_to='wandbb', expected none, all or some of azure_ml,"),
        (
            {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 1}},
            "adapo: AdaPOConfig: lr_scheduler_k",
        ),
        ({"optim_args": "beta"}, "adapo: AdaPOConfig: optim_args='beta', expected name=value, name=value"),
        ({"lr_scheduler_kwargs": {"foo": 1}}, "adapo: AdaPOConfig: lr_scheduler_kwargs={'foo': 1} do not suit "),
        ({"lr_scheduler_kwargs": "{"}, "adapo: AdaPOConfig: lr_scheduler_kwargs={ do not suit lr_scheduler_type="),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "adapo: AdaPOConfig: lr_scheduler_kwargs={} do not suit "),
        ({"max_steps": 2.5}, "adapo: CONFIG: max_steps: 2.5, expected a whole number"),
        ({"num_generations": 0}, "adapo: AdaPOConfig: num_generations=0, expected 2 or more"),
        ({"generation_kwargs": "text"}, "adapo: AdaPOConfig: generation_kwargs='text', expected `name: value` pairs"),
        ({"temperature": 0}, "adapo: AdaPOConfig: temperature=0, expected above 0: greedy answers to a question are"),
        (
            {"use_peft": True, "lora_target_modules": ["nothing"]},
            "training: the adapter (lora_target_modules: ['nothing']): Target modules",
        ),
        (
            {"use_peft": True, "lora_target_modules": ["q_proj", "nothing"]},
            "training: lora_target_modules: the model has no layer nothing",
        ),
        ({"max_prompt_length": 10}, "training: of 16 prompts 16 are longer than max_prompt_length=10; the longest has"),
        ({"attn_implementation": "flassh"}, "training: attn_implementation: flassh, expected one of eager, "),
        ({"push_to_hub": True}, "training: push_to_hub: true needs a token of the Hub, and there is none. Fix: log in"),
        ({"lora_r": 8}, "adapo: lora_r=8 is of an adapter, and without use_peft all weights are trained. Fix: --use_p"),
        ({"eval_strategy": "steps", "eval_steps": 2}, "training: evaluation during training has no rows. Fix: eval_da"),
        ({"model_name_or_path": None}, "model_name_or_path: no policy is named. Fix: give a Hub id, or a folder"),
    ],
)
def test_what_training_would_refuse_late_is_found(given, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trl_mmreason.cli.doctor.settings.get_token", lambda: None)
    (found,) = failures(capsys, tmp_path / "config.yaml", {**TRAINABLE, **given})
    assert found.startswith(f"FAIL  {message}".replace("CONFIG", str(tmp_path / "config.yaml")))


NO_ROWS = "FAIL  training: dataset_name: rows"


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({"columns": None}, [f"{NO_ROWS} has no column for answer: looked for ['answer', "]),
        ({"columns": {"answer": "golden"}}, [f"{NO_ROWS} has no column 'golden' for answer; it has ['question', "]),
        (
            {"columns": {"answr": "gold"}},
            ["FAIL  training: dataset_name: columns has the keys ['answr']; expected our"],
        ),
        (
            {"image_root": "nowhere"},
            [f"{NO_ROWS}: 16 of 16 rows cannot be used: row 0 (id 'rows-0'), column 'image': missing image file"],
        ),
        (
            {"eval_dataset_name": "test.jsonl"},
            ["FAIL  training: eval_dataset_name: test has no column 'gold' for answer; it has ['question', 'answer']"],
        ),
        ({}, []),
    ],
)
def test_what_is_wrong_with_rows_is_said_before_a_model_is_loaded(given, messages, tmp_path, monkeypatch, own_cache):
    monkeypatch.chdir(tmp_path)
    Path("red.png").write_bytes(png("red"))
    write_lines(Path("rows.jsonl"), [{"question": f"{n}?", "image": "red.png", "gold": str(n)} for n in range(16)])
    write_lines(Path("test.jsonl"), [{"question": "1?", "answer": "1"}])
    recipe = {**TRAINABLE, "dataset_name": "rows.jsonl", "columns": {"answer": "gold"}, **given}
    _, stages = settings_of(tmp_path, **recipe)
    found = [str(finding) for finding in check_rows(stages["training"], "training")]
    assert len(found) == len(messages)
    assert all(line.startswith(message) for line, message in zip(found, messages, strict=True))


def test_doctor_reads_the_rows_and_names_a_lost_file_of_any_kind(tmp_path, monkeypatch, capsys, own_cache):
    monkeypatch.chdir(tmp_path)
    write_lines(Path("rows.jsonl"), [{"question": "1?", "answer": ""}] * 16)
    given = {**TRAINABLE, "dataset_name": "rows.jsonl", "eval_dataset_name": "data/test.tsv"}
    lost, unusable = failures(capsys, tmp_path / "config.yaml", given)
    assert lost.startswith("FAIL  eval_dataset_name: there is no data/test.tsv. Fix: write it")
    assert unusable.startswith(f"{NO_ROWS}: 16 of 16 rows cannot be used: row 0 (id 'rows-0'), column 'answer': empty")


def test_prompts_that_fit_are_said_to(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({**TRAINABLE, "max_prompt_length": 40}))
    _, lines = doctor(capsys, "--config", config)
    assert "ok    training: of 16 prompts 0 are longer than max_prompt_length=40; the longest has 33 tokens." in lines


def test_memory_is_estimated_for_the_prompts_that_are_there(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(TRAINABLE))
    _, lines = doctor(capsys, "--config", config)
    answers = 2 * 5000  # of two turns, at the default limit
    assert f"{33 + answers} tokens, 33 of them in the longest of the first prompts, 25 for its image at" in lines[-1]
    config.write_text(json.dumps({**TRAINABLE, "dataset_name": "owner/of_the_hub"}))
    _, lines = doctor(capsys, "--config", config)
    assert f"{1024 + answers} tokens, 1024 of them assumed for a prompt, 768 for its image at" in lines[-1]


def test_a_file_that_several_methods_take_is_checked_as_one_of_the_method_that_is_named(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({**TRAINABLE, "max_prompt_length": 40}))
    _, lines = doctor(capsys, "--config", config)
    assert any(re.search(r"that adapo takes; .*\bgrpo\b.* would, too: --method names one\.$", line) for line in lines)
    _, lines = doctor(capsys, "--config", config, "--method", "grpo")
    assert f"ok    {config} is a configuration that grpo takes." in lines
    assert doctor(capsys, "--method", "grpo")[0].startswith("mmreason doctor: --method has no effect without --config")


def staged(**given):
    """A configuration of Chain-of-Step with two stages."""
    top = {key: TRAINABLE[key] for key in ("model_name_or_path", "dataset_name", "output_dir")}
    common = {"use_cpu": True, "bf16": False, "report_to": "none", **given.pop("common", {})}
    sections = {"sft": {"learning_rate": 1}, "dpo": {"learning_rate": 1, "rounds": 2}, **given}
    return {**top, "stages": "sft,dpo", "step_dataset": "miniature", "common": common, **sections}


def test_a_fault_of_the_common_settings_is_said_once(tmp_path, capsys):
    config = tmp_path / "config.yaml"
    assert failures(capsys, config, staged()) == []
    assert failures(capsys, config, staged(common={"lerning_rate": 1})) == [
        "FAIL  common: ChainOfStepSFTConfig has no `lerning_rate`; did you mean `learning_rate`?"
    ]
    assert failures(capsys, config, staged(dpo={"learning_rate": 1, "rouns": 2})) == [
        "FAIL  dpo: IterativeDPOConfig has no `rouns`; did you mean `rounds`?"
    ]
    assert failures(capsys, config, staged(dpo={"learning_rate": 1, "save_strategy": "hourly"}))[0].startswith(
        "FAIL  dpo: hourly is not a valid"
    )
    assert failures(capsys, config, staged(dpo={"learning_rate": 1, "rounds": 2.5})) == [
        "FAIL  dpo: rounds: 2.5, expected a whole number"
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="bf16 needs no fix where there is a GPU")
def test_what_the_machine_lacks_for_all_stages_is_said_once(tmp_path, capsys):
    assert failures(capsys, tmp_path / "config.yaml", staged(common={"bf16": True, "use_cpu": False})) == [
        "FAIL  common: bf16: true asks for a GPU, and there is none. Fix: --common.bf16 false --common.use_cpu true, "
        "or a machine with one."
    ]


def test_files_of_the_wanted_stages_and_folders_are_looked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    lost = {"dataset_name": "data/mine", "step_dataset": "data/chains.parquet", "label_dataset": "data/labels.parquet"}
    found = failures(capsys, tmp_path / "config.yaml", {**staged(), **lost})
    assert [line.partition(" Fix")[0] for line in found] == [  # the labels are for the stage prm
        "FAIL  dataset_name: there is no data/mine.",
        "FAIL  step_dataset: there is no data/chains.parquet.",
    ]


def test_a_configuration_of_no_method_is_named_so(tmp_path, capsys):
    (found,) = failures(capsys, tmp_path / "cpu.yaml", {"compute_environment": "LOCAL", "use_cpu": True, "machine": 0})
    assert "cpu.yaml is no configuration of a method: no method has compute_environment, machine." in found


@pytest.mark.parametrize("name", ["grpo/miniature", "sophia/miniature", "self_evolution/miniature", "srpo/miniature"])
def test_the_method_of_a_copied_recipe_is_found(name, tmp_path):
    """By its keys; GRPO's are AdaPO's too."""
    config = tmp_path / "mine.yaml"
    config.write_text((ROOT / f"configs/{name}.yaml").read_text())
    parser, (found,) = check_method(str(config), tuple(SCRIPTS))
    assert found.level == "ok", found
    assert parser.method == ("adapo" if name.startswith("grpo") else name.partition("/")[0])


def test_the_folder_of_an_interrupted_run_names_its_checkpoint(tmp_path, capsys):
    (tmp_path / "checkpoint-5").mkdir()
    _, lines = doctor(capsys, "--model", tmp_path)
    assert f"FAIL  the folder {tmp_path} holds no model: it has no config.json; {tmp_path}/checkpoint-5 may" in lines


def test_an_adapter_is_named_as_one(tmp_path, capsys):
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    _, lines = doctor(capsys, "--model", tmp_path)
    assert f"'{tmp_path}' holds an adapter of owner/base, expected a whole model. Fix: " in lines[-1]


@pytest.mark.parametrize("weights", [(), ("--weights",)])
def test_a_text_only_policy_is_fine(weights, tmp_path, capsys):
    status, lines = doctor(capsys, "--model", saved_reasoner("qwen2", tmp_path), *weights)
    assert status is None
    assert "note  a text-only policy: rows with images are refused." in lines
    assert any(line.startswith("ok    AdaPO: exact") for line in lines)
