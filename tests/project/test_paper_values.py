"""The papers' values: the defaults of configuration classes and of data steps, and what the recipes train with."""

import argparse
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import trl_mmreason
from trl_mmreason.baselines.sft import PlainSFTConfig
from trl_mmreason.baselines.two_turns import SCoReConfig
from trl_mmreason.chain_of_step.data import annotate_by_monte_carlo
from trl_mmreason.cli.commands import annotate, reflect, trajectories
from trl_mmreason.cli.commands.command_options import sampling_settings
from trl_mmreason.cli.main import build_parser
from trl_mmreason.generation import SamplingParams
from trl_mmreason.sophia.config import MixedGroupsGRPOConfig
from trl_mmreason.sophia.sampling import OffPolicySampling
from trl_mmreason.srpo.cold_start import ReflectionMaking
from trl_mmreason.srpo.prompts import COT_PROMPT
from trl_mmreason.srpo.selection import select_mix
from trl_mmreason.training.vllm_config import RolloutConfig

ROOT = Path(__file__).parents[2]


@dataclass
class Stage:
    """What a paper says of one trainer's settings.

    Attributes:
        config: the configuration class.
        paper: field → value, and where the paper has it.
        recipes: where the trainer's settings stand, as "folder" or "folder:section" below `configs/`.
        departures: (recipe, field) → the other value there, which its comment explains.
        in_recipes: field → value of what the recipes set, and the class leaves at TRL's default.
    """

    config: type
    paper: dict
    recipes: str
    departures: dict = field(default_factory=dict)
    in_recipes: dict = field(default_factory=dict)


GROUP = {"num_generations": (8, "rollouts a question"), "loss_type": ("grpo", "a mean over trajectories")}
STAGES = {
    "AdaPO": Stage(
        trl_mmreason.AdaPOConfig,
        GROUP
        | {
            "epsilon": (0.25, "Table 4"),
            "top_p": (0.99, "Table 4"),
            "temperature": (1.0, "Table 4"),
            "learning_rate": (5e-7, "Table 4"),
            "num_train_epochs": (2, "Table 4"),
            "beta": (0.001, "Table 4"),
            "kl_scale": (0.01, "Table 4"),
            "base_correct": (1.0, "Table 4: R of 0→1 and 1→1"),
            "base_incorrect": (-1.0, "Table 4: R of 1→0 and 0→0"),
            "threshold": (0.6, "Table 4"),
            "max_completion_length": (5000, "Table 4"),
            "k_01": (1.0, "Table 4, with the sign of Eq. 4"),
            "k_11": (-1.0, "Table 4, with the sign of Eq. 4 too"),
            "k_10": (0.5, "Table 4"),
            "k_00": (-0.5, "Table 4"),
            "use_bias_correction_kl": (False, "Table 4: low variance KL"),
        },
        "adapo",
        {("qwen2_5_vl_7b_qlora", "learning_rate"): 5e-5, ("qwen2_5_vl_7b_qlora", "optim"): "adamw_8bit"},
        {"optim": ("adamw_torch", "Table 4: Adam")},
    ),
    "SFT and STaR, baselines of AdaPO": Stage(
        PlainSFTConfig,
        {
            "num_train_epochs": (2, "appendix B"),
            "learning_rate": (2e-5, "appendix B"),
            "lr_scheduler_type": ("linear", "appendix B"),
            "warmup_steps": (0.1, "appendix B"),
        },
        "sft",
    ),
    "GRPO, a baseline of AdaPO": Stage(RolloutConfig, GROUP, "grpo"),
    "SCoRe, a baseline of AdaPO": Stage(
        SCoReConfig,
        {
            "alpha": (10.0, "appendix B"),
            "beta": (0.01, "appendix B: β1"),
            "stage_one_beta": (0.1, "appendix B: β2"),
            "temperature": (1.0, "appendix B"),
            "learning_rate": (2e-5, "appendix B"),
        },
        "score",
    ),
    "SRPO": Stage(
        trl_mmreason.SRPOConfig,
        GROUP
        | {
            "temperature": (1.0, "section 4.1"),
            "learning_rate": (1e-6, "section 4.1"),
            "num_train_epochs": (3, "section 4.1"),
            "brevity_coef": (0.1, "section 4.1"),
            "target_ratio": (2.0, "section 4.1"),
            "max_ratio": (2.5, "section 4.1"),
            "filter_min_accuracy": (0.1, "B.2"),
            "filter_max_accuracy": (0.9, "B.2"),
            "freeze_vision_encoder": (True, "B.2"),
            "gradient_checkpointing": (True, "B.2"),
            "use_bias_correction_kl": (False, "B.2: k3"),
        },
        "srpo",
        in_recipes={"optim": ("adamw_torch", "section 4.1: Adam"), "bf16": (True, "B.2")},
    ),
    "cold start of SRPO": Stage(
        trl_mmreason.ReflectionSFTConfig, {"num_train_epochs": (1, "section 4.1")}, "reflection_sft"
    ),
    "Chain-of-Step, SFT": Stage(
        trl_mmreason.ChainOfStepSFTConfig,
        {
            "learning_rate": (5e-6, "Table 7"),
            "num_train_epochs": (1, "Table 7"),
            "warmup_steps": (0.03, "Table 7"),
            "weight_decay": (0.05, "Table 7"),
            "freeze_vision_encoder": (True, "Table 7: projector and LLM"),
            "max_length": (None, "ours: no chain is cut"),
        },
        "chain_of_step:sft",
    ),
    "Chain-of-Step, process reward": Stage(
        trl_mmreason.ProcessRewardConfig,
        {
            "learning_rate": (1e-6, "Table 7"),
            "num_train_epochs": (2, "Table 7"),
            "warmup_steps": (0.03, "Table 7"),
            "weight_decay": (0.05, "Table 7"),
            "freeze_vision_encoder": (True, "Table 7: projector and LLM"),
        },
        "chain_of_step:prm",
    ),
    "Chain-of-Step, DPO": Stage(
        trl_mmreason.IterativeDPOConfig,
        {
            "rounds": (3, "Table 7"),
            "num_train_epochs": (1, "ours: of a round, not said"),
            "num_paths": (16, "section 3.4"),
            "step_weight": (0.2, "section 4.3.1"),
            "beta": (0.1, "section 3.4"),
            "learning_rate": (1e-6, "Table 7"),
            "warmup_steps": (0.03, "Table 7"),
            "weight_decay": (0.05, "Table 7"),
            "freeze_vision_encoder": (False, "Table 7: ViT, projector and LLM"),
            "temperature": (1.0, "appendix C"),
            "top_p": (0.95, "appendix C"),
            "pairing": ("best_worst", "section 3.4"),
            "pair_threshold": (0.2, "ours: section 3.4 gives no number"),
        },
        "chain_of_step:dpo",
    ),
    "Chain-of-Step, GRPO": Stage(
        trl_mmreason.ChainOfStepGRPOConfig,
        {
            "num_generations": (5, "section 4.5"),
            "learning_rate": (1e-5, "section 4.5"),
            "max_steps": (100, "section 4.5"),
            "step_weight": (0.2, "section 4.3.1"),
            "loss_type": ("grpo", "a mean over trajectories"),
        },
        "chain_of_step:grpo",
    ),
    "SOPHIA": Stage(
        trl_mmreason.OffPolicyRewardConfig,
        {
            "learning_rate": (2e-5, "B.1"),
            "weight_decay": (0.05, "B.1"),
            "lr_scheduler_type": ("cosine_with_min_lr", "B.1"),
            "lr_scheduler_kwargs": ({"min_lr_rate": 0.25}, "B.1: down to 1/4"),
            "num_train_epochs": (1, "a single round"),
            "beta": (0.0, "B.1: no KL term"),
            "trainable_parts": (["language"], "B.1"),
            "importance_sampling": ("none", "Lemma A.3"),
            "sequence_reduction": ("sum", "Eq. 7"),
        },
        "sophia:update",
    ),
    "SOPHIA, GRPO": Stage(
        MixedGroupsGRPOConfig,
        GROUP
        | {
            "max_completion_length": (16384, "B.2"),
            "learning_rate": (5e-7, "B.2"),
            "weight_decay": (0.05, "B.1, as B.2 says"),
            "lr_scheduler_type": ("cosine_with_min_lr", "B.1, as B.2 says"),
            "lr_scheduler_kwargs": ({"min_lr_rate": 0.25}, "B.1, as B.2 says"),
            "beta": (0.0, "B.1, as B.2 says"),
            "trainable_parts": (["language"], "B.1, as B.2 says"),
        },
        "sophia:grpo",
    ),
    "self-evolution": Stage(
        trl_mmreason.SelfEvolutionConfig,
        GROUP
        | {
            "loss_type": ("dr_grpo", "Eq. 12–14: a response counts as a whole, whatever its length"),
            "learning_rate": (1e-6, "section 4.1"),
            "weight_decay": (0.01, "section 4.1"),
            "max_grad_norm": (1.0, "section 4.1"),
            "num_train_epochs": (20, "section 4.1"),
            "beta": (0.01, "section 4.1"),
            "use_bias_correction_kl": (False, "Table 5: low variance KL"),
            "max_completion_length": (2048, "Table 5"),
            "max_prompt_length": (1024, "Table 5"),
            "judge_sampling_temperature": (1.0, "section 4.1"),
            "judge_top_p": (0.9, "section 4.1"),
            "high_weight": (0.2, "section 4.1"),
            "low_weight": (0.2, "section 4.1"),
            "high_threshold": (0.95, "section 4.1"),
            "low_threshold": (0.40, "section 4.1"),
            "high_temperature": (1.0, "section 4.1"),
            "low_temperature": (1.0, "section 4.1"),
            "alpha": (1.0, "section 4.1"),
            "format_penalty": (0.5, "section 3.3"),
        },
        "self_evolution:evolution",
        {("internvl3_8b", "max_prompt_length"): 4096},
        {"optim": ("adamw_torch", "section 4.1: AdamW")},
    ),
}


@pytest.mark.parametrize("name", STAGES)
def test_the_defaults_are_the_papers(name, tmp_path):
    made = STAGES[name].config(str(tmp_path), use_cpu=True, bf16=False)
    for key, (value, place) in STAGES[name].paper.items():
        assert getattr(made, key) == value, f"{key}: the paper has {value} ({place})"


RECIPES = [
    (name, path)
    for name, stage in STAGES.items()
    for path in sorted(ROOT.glob(f"configs/{stage.recipes.partition(':')[0]}/*.yaml"))
    if path.stem not in ("miniature", "pretrained", "pretrained_images", "your_model")  # sizes of our own
]


@pytest.mark.parametrize(("name", "path"), RECIPES, ids=lambda part: part if isinstance(part, str) else part.stem)
def test_the_recipes_train_with_the_papers_values(name, path, tmp_path):
    """What a recipe leaves out is the configuration's default."""
    stage = STAGES[name]
    section = stage.recipes.partition(":")[2]
    whole = yaml.safe_load(path.read_text())
    given = {**whole.get("common", {}), **whole[section]} if section else whole
    defaults = stage.config(str(tmp_path), use_cpu=True, bf16=False)
    for key, (value, place) in {**stage.paper, **stage.in_recipes}.items():
        expected = stage.departures.get((path.stem, key), value)
        assert given.get(key, getattr(defaults, key)) == expected, f"{key}: the paper has {value} ({place})"


def test_every_recipe_of_a_method_is_compared():
    """A folder of recipes that nobody reads here would be a gap."""
    folders = {path.parent.name for path in ROOT.glob("configs/*/*.yaml") if path.stem != "miniature"}
    compared = {path.parent.name for _, path in RECIPES}
    assert folders - compared <= {"accelerate", "study"}


@dataclass
class DataStep:
    """What a paper says of a step that makes data.

    Attributes:
        command: module of its command.
        options: what the command line has to have, besides questions, rows and policy.
        settings: parsed command line → what the command hands over.
        paper: setting → value, where the paper has it, and the functions and classes that have it as a parameter.
    """

    command: ModuleType
    options: list[str]
    settings: Callable[[argparse.Namespace], dict]
    paper: dict


DATA_STEPS = {
    "SRPO, reflections": DataStep(
        reflect,
        ["--teacher", "teacher"],
        lambda parsed: vars(ReflectionMaking(**reflect.making_settings(parsed))),
        {
            "right_share": (0.3, "section 3.1.1", ReflectionMaking, select_mix),
            "cot_prompt": (COT_PROMPT, "section 3.1.1 and B.3", ReflectionMaking),
        },
    ),
    "Chain-of-Step, labels": DataStep(
        annotate,
        ["--by", "monte-carlo"],
        lambda parsed: {**sampling_settings(parsed), "paths": parsed.paths},
        {
            "n": (16, "section 3.3", annotate_by_monte_carlo),
            "paths": (16, "appendix C"),
            "sampling_params": (SamplingParams(temperature=1.0, top_p=0.95), "appendix C", annotate_by_monte_carlo),
        },
    ),
    "SOPHIA, trajectories": DataStep(
        trajectories,
        ["--reasoner", "reasoner"],
        lambda parsed: {**sampling_settings(parsed), **trajectories.selection_settings(parsed)},
        {
            "captions": (8, "B.1: K", OffPolicySampling),
            "trajectories": (8, "B.1: N", OffPolicySampling),
            "threshold": (0.75, "B.1: α", OffPolicySampling),
            "keep": (1, "Eq. 6", OffPolicySampling),
            "rule": ("sophia", "Eq. 6", OffPolicySampling),
            "caption_sampling_params": (SamplingParams(32768), "Fig. A4", OffPolicySampling),
            "sampling_params": (SamplingParams(32768), "Fig. A4", OffPolicySampling),
        },
    ),
}


@pytest.mark.parametrize("name", DATA_STEPS)
def test_the_defaults_of_data_steps_are_the_papers(name):
    """In code and on the command line."""
    step = DATA_STEPS[name]
    command = step.command.__name__.rpartition(".")[2]
    settings = step.settings(
        build_parser().parse_args([command, "questions", "rows", "--model", "policy", *step.options])
    )
    for key, (value, place, *places_in_code) in step.paper.items():
        assert settings[key] == value, f"mmreason {command}, {key}: the paper has {value} ({place})"
        for code in places_in_code:
            default = inspect.signature(code).parameters[key].default
            assert default == value, f"{code.__name__}, {key}: the paper has {value} ({place})"
