"""Baselines of AdaPO (Fig. 2 and appendix B): as `adapo_mutations.py`, which has these entries too."""

from tests.paper_mutations.mutation import RECIPES, Mutation

TWO_TURNS = "trl_mmreason/baselines/objective.py"
STAR = "trl_mmreason/baselines/star.py"
SFT_RECIPE = "configs/sft/qwen2_5_vl_7b.yaml"
STAR_RECIPE = "configs/sft/qwen2_5_vl_7b_star.yaml"
SCORE_RECIPE = "configs/score/qwen2_5_vl_7b.yaml"
OF_RECIPES = "tests/adapo/test_adapo_recipes.py::test_"
OF_BASELINES = "tests/baselines/test_objective.py::test_"
OF_TURNS = "tests/baselines/test_two_turns.py::test_"

TABLE = [
    (
        "Fig. 2 | fixed rewards with R₀₁ >",
        "trl_mmreason/baselines/two_turns.py",
        "_coefficients(errors, self.args.beta, self.args.beta))",
        "_coefficients(errors, 2 * self.args.beta, self.args.beta))",
        f"{OF_TURNS}fixed_rewards_and_one_coefficient",
    ),
    (
        "Fig. 2 | fixed rewards with R₀₁ >",
        "study/adapo.py",
        'above(BEFORE, "fixed-correction", "acc_t1")',
        'above("fixed-correction", BEFORE, "acc_t1")',
        "tests/study/test_document.py::test_published_claims_are_judged_by_the_current_rule[adapo]",
    ),
    (
        "Fig. 2 | fixed rewards with R₁₁ >",
        TWO_TURNS,
        "right = r_11 * first + r_01 * (1 - first)",
        "right = r_01 * first + r_11 * (1 - first)",
        f"{OF_BASELINES}fixed_rewards",
    ),
    (
        "Fig. 2 | fixed rewards with R₁₁ >",
        "study/adapo.py",
        'above("adapo", "fixed-preservation", "delta")',
        'above("fixed-preservation", "adapo", "delta")',
        "tests/study/test_document.py::test_published_claims_are_judged_by_the_current_rule[adapo]",
    ),
    (
        "B, SFT | 2 epochs",
        SFT_RECIPE,
        "warmup_steps: 0.1 ",
        "warmup_steps: 0.0 ",
        f"{OF_RECIPES}the_supervised_baselines_of_adapo[sft/qwen2_5_vl_7b]",
    ),
    (
        "B, STaR | only correctly",
        STAR,
        "if one is False and two)",
        "if two)",
        "tests/baselines/test_star.py::test_right_revisions_of_wrong_answers_are_learnt",
    ),
    (
        "B, STaR | the settings of SFT",
        STAR_RECIPE,
        "learning_rate: 2.0e-5 ",
        "learning_rate: 1.0e-5 ",
        f"{RECIPES}[SFT and STaR, baselines of AdaPO-qwen2_5_vl_7b_star]",
    ),
    (
        "B, GRPO | K = 8",
        "configs/grpo/qwen2_5_vl_7b.yaml",
        "learning_rate: 2.0e-6 ",
        "learning_rate: 1.0e-6 ",
        f"{OF_RECIPES}the_reinforced_baselines_of_adapo",
    ),
    (
        "B, SCoRe | stage I pays",
        TWO_TURNS,
        "torch.stack([torch.zeros_like(first), second], dim=2)",
        "torch.stack([first, second], dim=2)",
        f"{OF_BASELINES}score_pays_the_second_answer_in_stage_one",
    ),
    (
        "B, SCoRe | stage II pays",
        TWO_TURNS,
        "torch.stack([first, second + alpha",
        "torch.stack([torch.zeros_like(first), second + alpha",
        f"{OF_BASELINES}score_pays_both_answers_and_the_second_for_its_gain_in_stage_two",
    ),
    (
        "B, SCoRe | a bonus",
        TWO_TURNS,
        "second + alpha * (second - first)",
        "second + alpha * second * (1 - first)",
        f"{OF_BASELINES}score_pays_both_answers_and_the_second_for_its_gain_in_stage_two",
    ),
    (
        "B, SCoRe | REINFORCE",
        TWO_TURNS,
        "return apart / (std + 1e-4)",
        "return apart",
        f"{OF_BASELINES}advantages_of_each_turn",
    ),
    (
        "B, SCoRe | Adam, 2e-5",
        SCORE_RECIPE,
        "optim: adamw_torch ",
        "optim: sgd ",
        f"{OF_RECIPES}the_reinforced_baselines_of_adapo",
    ),
    (
        "B, SCoRe | no filters",
        "trl_mmreason/baselines/two_turns.py",
        "informative_groups(by_turn[..., 0]) | informative_groups(by_turn[..., 1])",
        "informative_groups(by_turn.sum(dim=2))",
        f"{OF_TURNS}a_group_whose_turns_differ_is_kept_though_their_sums_do_not",
    ),
    (
        "B, STaR | an answer,",
        STAR,
        "protocol = TwoTurn(followup, turns=1 + revisions)",
        "protocol = TwoTurn(followup, turns=revisions)",
        "tests/cli/test_revise_command.py::test_revise",
    ),
    (
        "B, STaR | all of it",
        "study/adapo.py",
        "_ITERATIONS = 2 ",
        "_ITERATIONS = 1 ",
        "tests/study/test_small_parts.py::test_star_continues_from_its_first_iteration",
    ),
    (
        "B, SCoRe | SCoRe maximises",
        TWO_TURNS,
        "apart = (rewards - mean) * mask",
        "apart = rewards * mask",
        "tests/self_evolution/test_length.py::test_advantages_that_are_centred_have_nothing_in_common",
    ),
]
BASELINES = [Mutation(*entry) for entry in TABLE]
