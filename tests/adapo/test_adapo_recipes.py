"""AdaPO's recipes and those of its baselines: the data that they begin with, ablations, and appendix B."""

import re
import shlex

import pytest
import torch
from test_configs import ADAPO, PAPER_MODELS, ROOT, each, parse

from trl_mmreason.adapo.objective import adaptive_rewards, kl_coefficients
from trl_mmreason.cli.main import build_parser

RECIPES = [path for path in ADAPO if path in PAPER_MODELS]


def sampling_command(path, command):
    """The `mmreason` command at the head of the file, as its parser reads it."""
    head = path.read_text().replace("\\\n#", "")  # a backslash continues in the next line
    (words,) = re.findall(rf"#   mmreason ({command} .*)", head)
    return build_parser().parse_args(shlex.split(words))


@each(RECIPES)
def test_a_recipe_of_adapo_is_prefiltered_as_it_trains(path):
    """By its own policy, which answers in both turns as in training, under a prompt that asks for a box (A.2)."""
    data, args, model = parse(path)
    asked = sampling_command(path, "prefilter")
    assert (asked.output, asked.model, asked.rule) == (data.dataset_name, model.model_name_or_path, "adapo")
    assert (asked.n, asked.max_new_tokens) == (args.num_generations, args.max_completion_length)
    assert (asked.temperature, asked.top_p) == (args.temperature, args.top_p)
    assert r"\boxed{}" in asked.system_prompt
    assert data.system_prompt is None  # the rows have it
    assert args.filter_zero_advantage
    assert args.filter_truncated
    assert args.zero_advantage_criterion == "reward"


@each(RECIPES)
def test_the_ablations_of_table_3_are_flags(path):
    """As the head of the file has them: base rewards alone; one KL coefficient; no filter, not even the offline one."""
    head = path.read_text().replace("\n# ", " ")
    no_arm, no_split = "--k_01 0 --k_11 0 --k_10 0 --k_00 0", "--kl_scale 0"
    no_filters = "--filter_zero_advantage false --filter_truncated false --dataset_name FanqingM/MMK12"
    assert f"{no_arm} (no ARM); {no_split} (no reward-aware KL)" in head
    assert f"{no_filters} --system_prompt PROMPT (no filters" in head

    def settings(args):
        names = ("k_01", "k_11", "threshold")
        return {name: getattr(args, name) for name in names}, {"k_10": args.k_10, "k_00": args.k_00}

    _, args, _ = parse(path, *no_arm.split())
    shared, wrong = settings(args)
    first, second = torch.tensor([[True, True, False, False]]), torch.tensor([[True, False, True, False]])
    assert adaptive_rewards(first, second, **shared, **wrong).tolist() == [[1.0, -1.0, 1.0, -1.0]]
    _, args, _ = parse(path, *no_split.split())
    for error in (0.0, 1.0):
        found = kl_coefficients(torch.tensor([error]), beta=args.beta, kl_scale=args.kl_scale, **settings(args)[0])
        assert [beta.item() for beta in found] == pytest.approx([0.001, 0.001])
    data, args, _ = parse(path, *no_filters.split(), "--system_prompt", "Box it.")
    assert (args.filter_zero_advantage, args.filter_truncated) == (False, False)
    assert (data.dataset_name, data.system_prompt) == ("FanqingM/MMK12", "Box it.")


@each([path for path in PAPER_MODELS if path.parent.name == "sft"])
def test_the_supervised_baselines_of_adapo(path):
    """Appendix B, besides what `test_paper_values.py` and `BATCHES` have: AdamW, and a warm-up of 10 %."""
    data, args, model = parse(path)
    assert args.optim == "adamw_torch"
    assert args.get_warmup_steps(500) == 50
    if path.stem.endswith("star"):
        asked = sampling_command(path, "revise")
        assert (asked.output, asked.model) == (data.dataset_name, model.model_name_or_path)
        assert (asked.n, asked.revisions, asked.followup) == (1, 2, None)  # AdaPO's prompt


def test_the_reinforced_baselines_of_adapo():
    """Appendix B: K = 8, 2 epochs, AdamW, 2e-6 of GRPO; Adam of SCoRe (its numbers: `test_paper_values.py`)."""
    _, grpo, _ = parse(ROOT / "configs/grpo/qwen2_5_vl_7b.yaml")
    assert (grpo.num_generations, grpo.num_train_epochs, grpo.learning_rate) == (8, 2, 2e-6)
    assert grpo.optim == "adamw_torch"
    _, score, _ = parse(ROOT / "configs/score/qwen2_5_vl_7b.yaml")
    assert score.optim == "adamw_torch"
