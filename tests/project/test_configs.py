"""Every shipped configuration is understood by the script it is for, and says what the paper says where it cites it."""

import importlib
import re
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from example_runs import load_example
from peft import get_peft_model
from trl import ModelConfig, TrlParser

from study.claims import claims_about
from study.running import BEFORE, StudyArguments
from trl_mmreason import ChainOfStepGRPOConfig, ChainOfStepSFTConfig, IterativeDPOConfig, ProcessRewardConfig
from trl_mmreason.chain_of_step.recipe import ChainOfStepArguments
from trl_mmreason.miniature.models import build_model
from trl_mmreason.scripts.single_stage import trainer_settings
from trl_mmreason.self_evolution.config import SelfEvolutionConfig
from trl_mmreason.self_evolution.recipe import EvolutionArguments
from trl_mmreason.sophia.prompts import THINKING_PROMPT
from trl_mmreason.sophia.recipe import SophiaArguments

ROOT = Path(__file__).parents[2]
LAUNCHERS = sorted(ROOT.glob("configs/accelerate/*.yaml"))
CHAIN_OF_STEP = sorted(ROOT.glob("configs/chain_of_step/*.yaml"))  # with a section a stage
SOPHIA = sorted(ROOT.glob("configs/sophia/*.yaml"))  # likewise
SELF_EVOLUTION = sorted(ROOT.glob("configs/self_evolution/*.yaml"))  # likewise
STUDY = sorted(ROOT.glob("configs/study/*.yaml"))  # with a section an arm
SECTIONED = [*CHAIN_OF_STEP, *SOPHIA, *SELF_EVOLUTION, *STUDY]
CONFIGS = sorted(path for path in ROOT.glob("configs/*/*.yaml") if path not in [*LAUNCHERS, *SECTIONED])
OURS = (
    "miniature",
    "pretrained",
    "pretrained_images",
    "your_model",
)  # no paper has them; test_your_model.py trains with the last
PAPER_MODELS = [path for path in CONFIGS if path.stem not in OURS]
ADAPO = [path for path in CONFIGS if path.parent.name == "adapo" and path.stem != "your_model"]
ADAPO_7B, ADAPO_QLORA = (ROOT / f"configs/adapo/qwen2_5_vl_7b{ending}.yaml" for ending in ("", "_qlora"))

# Where results go and how often, not what is computed.
BOOKKEEPING = {"dataset_split", "output_dir", "logging_steps", "save_strategy", "save_steps", "save_total_limit"}
BOOKKEEPING |= {"report_to", "seed"}


def name(path):
    return f"{path.parent.name}/{path.stem}"


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=name)


def parse(path, *options):
    """What the example of the config's method gets: data, training and model arguments.

    The types are those of the `main` of that example. `use_cpu` lets bf16 configurations pass on a machine that has
    no GPU; TRL parses vLLM's and DeepSpeed's settings without these packages.
    """
    types = [hint for name, hint in get_type_hints(load_example(path.parent.name).main).items() if name != "return"]
    return TrlParser(types).parse_args_and_config(["--config", str(path), "--use_cpu", "true", *options])


def comments(path):
    """Key → the comment on its line, "" if it has none."""
    lines = [re.match(r"(\w+):\s*(.*)", line) for line in path.read_text().splitlines()]
    found = {line[1]: line[2].partition("# ")[2] for line in lines if line}
    assert found.keys() == yaml.safe_load(path.read_text()).keys()  # no key escapes by its layout
    return found


def launcher(path):
    """The accelerate configuration that the command at the head of the file names."""
    (named,) = re.findall(rf"--config_file (\S+) examples/{path.parent.name}\.py --config (\S+)", path.read_text())
    assert named[1] == str(path.relative_to(ROOT))
    return load_config_from_file(str(ROOT / named[0]))


@each(CONFIGS)
def test_the_script_of_the_method_takes_every_key_and_value(path):
    given = yaml.safe_load(path.read_text())
    parsed = {key: value for part in parse(path) for key, value in vars(part).items()}
    written_differently = {
        "report_to": [] if given.get("report_to") == "none" else [given.get("report_to")],  # as `Trainer` has it
        "lr_scheduler_type": given.get("lr_scheduler_type"),  # a string enumeration
    }
    for key, value in given.items():
        assert parsed[key] == written_differently.get(key, value), key


@pytest.mark.parametrize("option", ["--on_error", "--system_prompt", "--eval_split"])
def test_an_evaluation_refuses_options_of_training_data(option):
    with pytest.raises(ValueError, match=option):
        parse(ROOT / "configs/evaluate/miniature.yaml", option, "raise")


@each(PAPER_MODELS)
def test_every_value_cites_its_place_or_says_ours(path):
    for key, text in comments(path).items():
        if key not in BOOKKEEPING:
            assert re.match(r'"Datasets"|Table \d|Fig\. \d|Section \d|Appendix B|[AB]\.\d|ours', text), key


@each(
    [
        path
        for path in [*CONFIGS, *SECTIONED]
        if path.stem not in ("miniature", "pretrained", "pretrained_images") and path not in STUDY
    ]
)
def test_every_recipe_evaluates_and_logs_to_a_tracker(path):
    given = yaml.safe_load(path.read_text())
    assert given["eval_dataset_name"]
    assert {**given, **given.get("common", {})}["report_to"] == "trackio"
    if path.parent.name in ("sft", "reflection_sft"):  # the others ask the questions before and after training
        _, args, _ = parse(path)
        assert (args.eval_on_start, args.eval_strategy) == (True, "steps")
        assert args.eval_steps == 0.1  # a share of all


def sections_with_vllm():
    """Every section of a recipe, or whole recipe, whose rollouts come from vLLM, completed by what stands outside."""
    for path in sorted((ROOT / "configs").glob("*/*.yaml")):
        whole = yaml.safe_load(path.read_text())
        for section in (whole, *(each for each in whole.values() if isinstance(each, dict))):
            if section.get("use_vllm"):
                yield path, {**whole, **section}


def test_prompts_and_answers_fit_the_engine():
    """A prompt too long for vLLM would end the run. Two turns have a follow-up between them, of some 100 tokens."""
    found = list(sections_with_vllm())
    assert len(found) == 14
    for path, given in found:
        turns = 2 if path.parent.name in ("adapo", "score") else 1
        needed = given["max_prompt_length"] + turns * given["max_completion_length"] + 100 * (turns - 1)
        assert needed <= given["vllm_max_model_length"], path
        if "vllm" in given:  # outside training
            assert given["vllm"]["max_model_len"] >= given["vllm_max_model_length"], path


# model → trajectories (or rows) of an update, those that are sampled at once
BATCHES = {
    "adapo/qwen2_5_vl_3b": (64 * 8, 64 * 8),
    "adapo/qwen2_5_vl_7b": (64 * 8, 64 * 8),
    "adapo/qwen2_5_vl_7b_qlora": (8 * 8, 8 * 4),
    "adapo/qwen2_vl_7b": (64 * 8, 64 * 8),
    "grpo/qwen2_5_vl_7b": (64 * 8, 64 * 8),
    "score/qwen2_5_vl_7b": (128, 128),
    "sft/qwen2_5_vl_7b": (32, None),
    "sft/qwen2_5_vl_7b_star": (32, None),
    "srpo/qwen2_5_vl_7b": (128, 128 * 8),
    "srpo/qwen2_5_vl_32b": (128, 128 * 8),
    "reflection_sft/qwen2_5_vl_7b": (128, None),
    "reflection_sft/qwen2_5_vl_32b": (128, None),
}


@each(PAPER_MODELS)
def test_whole_groups_fit_the_processes_of_the_launcher(path):
    _, args, _ = parse(path)
    processes = processes_of(path)
    update, sampled = BATCHES[name(path)]
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps * processes == update
    if sampled:
        assert args.per_device_train_batch_size * args.steps_per_generation * processes == sampled
        assert sampled % args.num_generations == 0
        assert max(update, sampled) % min(update, sampled) == 0


def processes_of(path):
    """As the command at the head of the file says, or else its launcher."""
    said = re.search(r"--num_processes (\d+)", path.read_text())
    return int(said[1]) if said else launcher(path).num_processes


@each([path for path in PAPER_MODELS if path.parent.name == "srpo"])
def test_the_recipe_of_srpo_trains_reflections(path):
    _, args, _ = parse(path)
    assert args.reflection_reward
    assert "<reflection>...</reflection>" in args.reflection_prompt


@pytest.mark.parametrize("stem", ["miniature", "pretrained", "pretrained_images"])
def test_our_grpo_differs_from_adapo_in_length_only(stem):
    adapo, grpo = (yaml.safe_load((ROOT / f"configs/{m}/{stem}.yaml").read_text()) for m in ("adapo", "grpo"))
    assert {key for key in adapo.keys() | grpo.keys() if adapo.get(key) != grpo.get(key)} == {"max_steps", "output_dir"}
    assert grpo["max_steps"] == 2 * adapo["max_steps"]  # two answers a trajectory there, one here
    _, args, _ = parse(ROOT / f"configs/grpo/{stem}.yaml")
    assert args.beta == 0.0


def test_qlora_adapts_every_linear_layer_of_the_language_model_and_none_of_the_vision_tower():
    _, training_args, model_args = parse(ADAPO_QLORA)
    settings = trainer_settings(model_args, training_args)
    model, _ = build_model("qwen2_5_vl", "test")
    # Two layers, each with four linear maps in the attention and three in the MLP.
    expected = {
        f"model.language_model.layers.{layer}.{module}_proj"
        for layer in (0, 1)
        for module in ["self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"]
    }
    adapted = get_peft_model(model, settings["peft_config"])
    found = {module.removeprefix("base_model.model.") for module, part in adapted.named_modules() if is_lora(part)}
    assert found == expected
    assert training_args.optim == "adamw_8bit"


def is_lora(module):
    return hasattr(module, "lora_A")


def test_qlora_loads_weights_of_four_bits_and_computes_in_bfloat16():
    _, training_args, model_args = parse(ADAPO_QLORA)
    quantization = trainer_settings(model_args, training_args)["quantization_config"]
    assert (quantization.load_in_4bit, quantization.bnb_4bit_quant_type) == (True, "nf4")
    assert (quantization.bnb_4bit_compute_dtype, quantization.bnb_4bit_use_double_quant) == (torch.bfloat16, True)
    assert training_args.model_init_kwargs["dtype"] == "bfloat16"


@each(
    [path for path in CONFIGS if path != ADAPO_QLORA and path.parent.name != "evaluate" and path.stem not in OURS[1:]]
)
def test_the_others_train_all_weights(path):
    _, training_args, model_args = parse(path)
    settings = trainer_settings(model_args, training_args, eval_rows=[])
    assert (settings["quantization_config"], settings["peft_config"]) == (None, None)


@each(
    [
        path
        for path in [*CONFIGS, *SECTIONED]
        if "dtype: bfloat16" in path.read_text() and "use_peft" not in path.read_text()
    ]
)
def test_whole_models_in_bfloat16_are_launched_with_float32_weights_for_the_updates(path):
    """At the papers' learning rates, bfloat16 by itself would round updates away (`compat/precision.py`)."""
    launchers = re.findall(r"--config_file configs/accelerate/(\w+)\.yaml", path.read_text())
    assert launchers
    assert set(launchers) <= {"zero2", "zero3", "zero3_offload", "fsdp2"}


@each(sorted(ROOT.glob("configs/*/your_model.yaml")))
def test_a_file_to_copy_says_where_training_all_weights_is_explained(path):
    """It takes another learning rate, and float32 on one GPU: leaving `use_peft` out would round most updates away."""
    (line,) = [line for line in path.read_text().splitlines() if line.startswith("use_peft: true ")]
    (named,) = re.findall(r'all weights: docs/training\.md, "(.+)"$', line)
    section = (ROOT / "docs/training.md").read_text().partition(f"## {named}\n")[2].partition("\n#")[0]
    assert "--use_peft false --dtype float32 --learning_rate" in section


# name → distributed_type, mixed_precision, num_processes, use_cpu
EXPECTED_LAUNCHERS = {
    "cpu": ("NO", "no", 1, True),
    "one_gpu": ("NO", "bf16", 1, False),
    "multi_gpu": ("MULTI_GPU", "bf16", 8, False),
    "zero2": ("DEEPSPEED", "bf16", 8, False),
    "zero3": ("DEEPSPEED", "bf16", 8, False),
    "zero3_offload": ("DEEPSPEED", "bf16", 8, False),
    "fsdp2": ("FSDP", "bf16", 8, False),
    "two_nodes_zero3": ("DEEPSPEED", "bf16", 16, False),
    "two_nodes_fsdp2": ("FSDP", "bf16", 16, False),
}


def test_accelerate_loads_every_launcher():
    loaded = {path.stem: load_config_from_file(str(path)) for path in LAUNCHERS}
    assert {
        stem: (each.distributed_type.value, each.mixed_precision, each.num_processes, each.use_cpu)
        for stem, each in loaded.items()
    } == EXPECTED_LAUNCHERS
    assert [loaded[stem].deepspeed_config["zero_stage"] for stem in ("zero2", "zero3", "zero3_offload")] == [2, 3, 3]
    for stem, device in (("zero3", "none"), ("zero3_offload", "cpu")):
        settings = loaded[stem].deepspeed_config
        assert settings["zero3_save_16bit_model"] is True  # or the saved model would be empty
        assert settings["offload_param_device"] == settings["offload_optimizer_device"] == device
    assert loaded["fsdp2"].fsdp_config["fsdp_version"] == 2


@pytest.mark.parametrize("engine", ["zero3", "fsdp2"])
def test_two_machines_differ_from_one_in_the_machines_only(engine):
    """Each of them is told its rank and the address of the first on the command line."""
    one, two = (
        yaml.safe_load((ROOT / f"configs/accelerate/{name}.yaml").read_text())
        for name in (engine, f"two_nodes_{engine}")
    )
    machines = {"num_machines": 2, "num_processes": 16, "main_process_ip": "127.0.0.1", "main_process_port": 29500}
    assert two == {**one, **machines}
    assert two["rdzv_backend"] == "static"  # the address of the first machine is all they need to know


# ------------------------------------------------------------------------------------------------------ Chain-of-Step

STAGES = {
    "sft": ChainOfStepSFTConfig,
    "prm": ProcessRewardConfig,
    "dpo": IterativeDPOConfig,
    "grpo": ChainOfStepGRPOConfig,
}
PAPER_BATCHES = {"sft": 128, "prm": 128, "dpo": 256, "grpo": 128 * 5}


@each(CHAIN_OF_STEP)
def test_every_section_of_chain_of_step_is_a_stage_s_configuration(path, tmp_path):
    given = yaml.safe_load(path.read_text())
    args, model_args = TrlParser((ChainOfStepArguments, ModelConfig)).parse_args_and_config(["--config", str(path)])
    parsed = {**vars(model_args), **vars(args)}
    assert {key: parsed[key] for key in given} == given
    args.output_dir, args.common["use_cpu"] = str(tmp_path), True
    for stage in STAGES:
        config = args.config(stage, tmp_path / stage)
        assert config.output_dir == str(tmp_path / stage)
        for key, value in {**given["common"], **given[stage]}.items():
            if key not in ("report_to", "use_cpu"):
                assert getattr(config, key) == value, (stage, key)
    assert set(given.get("search", {})) <= {"n", "step_weight", "max_steps"}


@each([path for path in CHAIN_OF_STEP if path.stem not in OURS])
def test_the_recipe_of_chain_of_step(path, tmp_path):
    given = yaml.safe_load(path.read_text())
    for stage, expected in PAPER_BATCHES.items():
        config = STAGES[stage](str(tmp_path), use_cpu=True, **given["common"], **given[stage])
        assert config.freeze_vision_encoder == (stage in ("sft", "prm"))  # "Update Parts"; section 4.5 says nothing
        processes = 8
        batch = config.per_device_train_batch_size * config.gradient_accumulation_steps * processes
        assert batch == expected, stage
    assert (given["search"]["n"], given["search"]["step_weight"]) == (64, 0.2)


@each([path for path in [*CHAIN_OF_STEP, *SELF_EVOLUTION] if path.stem not in OURS])
def test_every_value_in_a_section_cites_its_place_or_says_ours(path):
    for line in path.read_text().splitlines():
        key, _, rest = line.strip().partition(":")
        if line.startswith("#") or not rest or key in BOOKKEEPING | {"eval_split"}:
            continue
        assert re.search(r"# (Table \d|Section \d|Appendix C|ours)", rest), line


# ----------------------------------------------------------------------------------------------------- self-evolution


@each([path for path in SELF_EVOLUTION if path.stem not in OURS])
def test_the_recipe_of_self_evolution(path, tmp_path):
    """Section 4.1 and Table 5, on 8 processes; all arms that it names are understood."""
    args, _ = TrlParser((EvolutionArguments, ModelConfig)).parse_args_and_config(["--config", str(path)])
    args.common |= {"use_cpu": True, "bf16": False}
    args.evolution["use_vllm"] = False
    evolution = args.config("evolution", tmp_path)
    assert (evolution.vote, evolution.judge, evolution.advantages) == ("self_consistency", True, "log_sum_exp")
    arms = re.findall(r"\{.*?\}", path.read_text())
    assert len(arms) == 7
    for differences in map(yaml.safe_load, arms):
        SelfEvolutionConfig(str(tmp_path), **{**args.common, **args.evolution, **differences})
    assert 8 * evolution.per_device_train_batch_size * evolution.steps_per_generation == 512 * 8
    assert 8 * evolution.per_device_train_batch_size * evolution.gradient_accumulation_steps == 128 * 8
    assert args.answers == 10
    # a prompt with its image and a response fit the engine
    whole = evolution.max_prompt_length + evolution.max_completion_length
    assert evolution.vllm_max_model_length == whole
    assert evolution.eval_system_prompt is None  # appendix D: the official prompt


# ------------------------------------------------------------------------------------------------------------- SOPHIA


@each([path for path in SOPHIA if path.stem not in OURS])
def test_the_recipe_of_sophia(path, tmp_path):
    """Appendices B and C, what is no setting of one trainer; batches of 512 on 8 processes, GRPO's 64 questions · 8."""
    args, _ = TrlParser((SophiaArguments, ModelConfig)).parse_args_and_config(["--config", str(path)])
    args.common["use_cpu"] = True
    update = args.config("update", tmp_path)
    grpo = args.config("grpo", tmp_path, max_completion_length=args.max_completion_length)
    for config in (update, grpo):
        assert config.optim == "adamw_torch"
        assert config.per_device_train_batch_size * config.gradient_accumulation_steps * 8 == 512
    assert grpo.max_completion_length == 16384
    assert grpo.save_steps * grpo.save_total_limit == grpo.max_steps == 480  # section 6.2: any of them may be the best
    assert args.judge_model == "Qwen/Qwen2.5-72B-Instruct"
    assert args.difficulty == {"n": 16, "low": 0.4, "high": 0.6}
    assert args.evaluation == {"temperature": 1.0, "top_p": 0.8}
    assert (args.captions_as_data, args.thinking_prompt) == ("none", THINKING_PROMPT)


@each(STUDY)
def test_every_part_of_the_study_has_the_arms_that_its_claims_are_about(path):
    example = importlib.import_module("study.__main__")
    (args,) = TrlParser((StudyArguments,)).parse_args_and_config(["--config", str(path)])
    given = yaml.safe_load(path.read_text())
    assert {name: getattr(args, name) for name in given if name not in ("rl", "sft", "arms")} == {
        name: value for name, value in given.items() if name not in ("rl", "sft", "arms")
    }
    claims = example.PARTS[args.part].PART.claims
    assert len({claim.text for claim in claims}) == len(claims)  # notes and `decide` name them by their text
    about = claims_about(claims, (BEFORE, *args.arms))
    assert about
    shipped = [yaml.safe_load(each.read_text()) for each in STUDY]
    named = {claim.text for one in shipped if one["part"] == args.part for claim in claims_about(claims, _arms(one))}
    assert named == {claim.text for claim in claims}  # some of a part's claims are about arms of another config
    assert args.part in {each.stem for each in STUDY}
    assert re.search(rf"configs/study/{path.stem}\.yaml|`{path.stem}`", (ROOT / "docs/study.md").read_text())


def _arms(config):
    return (BEFORE, *config["arms"])
