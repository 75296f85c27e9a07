"""AdaPO: a change of the code for each row of docs/audit/adapo.md, and the row's own test that fails on it."""

from tests.paper_mutations.adapo_baselines import BASELINES
from tests.paper_mutations.mutation import RECIPES, VALUES, Mutation

TRAINER = "trl_mmreason/adapo/trainer.py"
OBJECTIVE = "trl_mmreason/adapo/objective.py"
CONFIG = "trl_mmreason/adapo/config.py"
GROUPS = "trl_mmreason/training/grpo.py"
CREDIT = "trl_mmreason/training/credit.py"
FUNCTIONAL = "trl_mmreason/functional.py"
METRICS = "trl_mmreason/evaluation/metrics.py"
RECIPE = "configs/adapo/qwen2_5_vl_7b.yaml"
OF_TRAINER = "tests/adapo/test_trainer.py::test_"
OF_OBJECTIVE = "tests/adapo/test_objective.py::test_"
OF_CONFIG = "tests/adapo/test_config.py::test_"
OF_RECIPES = "tests/adapo/test_adapo_recipes.py::test_"
OF_ROLLOUT = "tests/training/test_rollout.py::test_"
DEFAULTS = f"{VALUES}[AdaPO]"
TRAINED = f"{RECIPES}[AdaPO-qwen2_5_vl_7b]"

TABLE = [
    (
        "Motivation, A.3 | A_i",
        TRAINER,
        "rewards[~keep.flatten()] = torch.nan",
        "rewards[~keep.flatten()] = 0.0",
        f"{OF_TRAINER}advantages_are_normalised_over_the_kept_of_each_group",
    ),
    (
        "Fig. 2 | curves",
        GROUPS,
        "self.num_generations if self.model.training else self.num_generations_eval)",
        "self.num_generations)",
        f"{OF_ROLLOUT}evaluation_runs_both_turns_and_counts_every_question_once",
    ),
    (
        "Eq. 1 | y₁",
        "trl_mmreason/training/rollout.py",
        "            context = context.extended(turn.ids)\n",
        "            context = context.extended(turn.ids[:-1])\n",
        f"{OF_ROLLOUT}the_second_prompt_is_the_first_the_sampled_answer_and_the_template[qwen2_5_vl]",
    ),
    (
        "Workflow | C(y, y*)",
        TRAINER,
        "second_correct = [j.correct and exists",
        "second_correct = [j.correct",
        f"{OF_ROLLOUT}the_type_of_a_trajectory",
    ),
    (
        "Eq. 2 | P is",
        OBJECTIVE,
        "(~first_correct & keep)",
        "(first_correct & keep)",
        f"{OF_OBJECTIVE}error_rate_counts_wrong_first_answers_among_the_kept",
    ),
    (
        "Eq. 3 | base reward",
        OBJECTIVE,
        "right = base_correct + torch.where",
        "right = torch.where",
        f"{OF_OBJECTIVE}rewards_of_all_four_types_at_p_three_quarters",
    ),
    (
        "Eq. 4 | K₀₁",
        OBJECTIVE,
        "torch.where(first_correct, k_11, k_01)",
        "torch.where(first_correct, k_01, k_11)",
        f"{OF_OBJECTIVE}every_constant_is_used_where_it_belongs",
    ),
    (
        "Eq. 4 | K₀₁",
        TRAINER,
        '"threshold": args.threshold}',
        '"threshold": 0.6}',
        f"{OF_TRAINER}every_setting_of_the_rewards_reaches_the_trainer",
    ),
    (
        "Eq. 5 | K₁₀",
        OBJECTIVE,
        "torch.where(first_correct, k_10, k_00) * errors",
        "torch.where(first_correct, k_10, k_00) * (errors - threshold)",
        f"{OF_OBJECTIVE}rewards_of_all_four_types_at_p_one_quarter",
    ),
    (
        "Eq. 5 | K₁₀",
        TRAINER,
        "k_10=args.k_10,",
        "k_10=0.5,",
        f"{OF_TRAINER}every_setting_of_the_rewards_reaches_the_trainer",
    ),
    (
        "Base reward design | right types",
        CONFIG,
        'for p in (0, 1)],\n            "k_11"',
        'for p in (1,)],\n            "k_11"',
        f"{OF_CONFIG}rewards_that_change_sign_within_p_are_refused",
    ),
    (
        "Eq. 6 | β₁ weighs",
        CREDIT,
        '(inputs["kl_coefs"] - trainer.beta) * divergence',
        '(inputs["kl_coefs"].amax(dim=1, keepdim=True) - trainer.beta) * divergence',
        f"{OF_TRAINER}each_coefficient_acts_on_its_turn",
    ),
    (
        "Eq. 6 | an expectation",
        CREDIT,
        '(inputs["kl_coefs"] - trainer.beta) * divergence',
        'inputs["kl_coefs"] * divergence',
        f"{OF_TRAINER}a_uniform_coefficient_equals_trls_own[False-token-dapo]",
    ),
    (
        "Eq. 7, 8 | β₁",
        OBJECTIVE,
        "return correction.clamp(min=0.0) + beta, (-correction).clamp(min=0.0) + beta",
        "return correction + beta, beta - correction",
        f"{OF_OBJECTIVE}kl_coefficients",
    ),
    (
        "Eq. 7, 8 | β₁",
        TRAINER,
        "kl_scale=args.kl_scale, **shared)",
        "kl_scale=0.01, **shared)",
        f"{OF_TRAINER}every_setting_of_the_rewards_reaches_the_trainer",
    ),
    (
        "Eq. 9, 10 | both",
        OBJECTIVE,
        "correction = (k_01 - k_11) *",
        "correction = 2 * k_01 *",
        f"{OF_OBJECTIVE}kl_coefficients_follow_the_gap_between_the_two_right_rewards",
    ),
    (
        "Fig. 3 | the overview",
        TRAINER,
        "return RewardSignal(rewards, torch.stack(betas, dim=1))",
        "return RewardSignal(rewards, torch.stack(betas[::-1], dim=1))",
        f"{OF_TRAINER}types_become_rewards_and_coefficients",
    ),
    (
        "Eq. 11 | one stage",
        TRAINER,
        "errors = error_rate(first, keep)\n",
        "errors = error_rate(first, keep).mean().expand(len(first))\n",
        f"{OF_TRAINER}types_become_rewards_and_coefficients",
    ),
    (
        "Metrics | acc@t1",
        METRICS,
        '"delta": (second.mean(axis=1) - first.mean(axis=1), one)',
        '"delta": (first.mean(axis=1) - second.mean(axis=1), one)',
        "tests/evaluation/test_metrics.py::test_two_turn_metrics_of_ten_trajectories",
    ),
    (
        "Metrics | correction rate",
        METRICS,
        '"misjudgment_rate": (misjudged, first.mean(axis=1))',
        '"misjudgment_rate": (misjudged, one)',
        "tests/evaluation/test_metrics.py::test_two_turn_metrics_of_ten_trajectories",
    ),
    (
        "Implementation details | the self",
        "trl_mmreason/adapo/prompts.py",
        "please evaluate",
        "evaluate",
        f"{OF_CONFIG}the_prompt_is_the_papers",
    ),
    (
        "Table 3 | without ARM",
        TRAINER,
        "k_10=args.k_10,",
        "k_10=0.5,",
        f"{OF_TRAINER}without_the_adaptive_rewards_only_the_base_ones_are_paid",
    ),
    (
        "Table 3 | without reward-aware KL",
        TRAINER,
        "kl_scale=args.kl_scale, **shared)",
        "kl_scale=0.01, **shared)",
        f"{OF_TRAINER}without_the_kl_scale_both_turns_have_one_coefficient",
    ),
    (
        "Table 3 | without the hybrid",
        RECIPE,
        "# --filter_zero_advantage false --filter_truncated false",
        "# --filter_zero_advantage false",
        f"{OF_RECIPES}the_ablations_of_table_3_are_flags[adapo/qwen2_5_vl_7b]",
    ),
    (
        "A.2 | offline: drop",
        "trl_mmreason/adapo/prefilter.py",
        'frozenset({(False, False)}): "too hard: all 0→0"',
        'frozenset({(False, True)}): "too hard: all 0→0"',
        "tests/adapo/test_prefilter.py::test_adapo_drops_what_is_all_right_or_all_wrong",
    ),
    (
        "A.2 | the initial policy samples",
        RECIPE,
        "--model Qwen/Qwen2.5-VL-7B-Instruct --n 8",
        "--model runs/adapo-qwen2.5-vl-7b --n 8",
        f"{OF_RECIPES}a_recipe_of_adapo_is_prefiltered_as_it_trains[adapo/qwen2_5_vl_7b]",
    ),
    (
        "A.2 | N",
        RECIPE,
        "--model Qwen/Qwen2.5-VL-7B-Instruct --n 8",
        "--model Qwen/Qwen2.5-VL-7B-Instruct --n 4",
        f"{OF_RECIPES}a_recipe_of_adapo_is_prefiltered_as_it_trains[adapo/qwen2_5_vl_7b]",
    ),
    (
        "A.2 | all advantages zero",
        FUNCTIONAL,
        "(highest > lowest)",
        "(highest >= lowest)",
        f"{OF_TRAINER}groups_of_one_reward_are_dropped",
    ),
    (
        "A.2 | a group without advantages",
        GROUPS,
        'batch["tool_mask"] = env_mask * outcome.keep[local].unsqueeze(1)',
        'batch["tool_mask"] = env_mask',
        f"{OF_TRAINER}dropped_trajectories_leave_no_trace_in_the_loss[dapo]",
    ),
    (
        "A.2 | R(τ)",
        TRAINER,
        "informative_groups(second.float()",
        "informative_groups(first.float()",
        f"{OF_TRAINER}the_letter_of_a_2_drops_groups_whose_advantages_are_not_zero",
    ),
    (
        "A.2 | a trajectory with a truncated",
        TRAINER,
        "keep = graded & ~truncated if args.filter_truncated else graded",
        "keep = graded",
        f"{OF_TRAINER}truncated_trajectories_take_part_in_nothing",
    ),
    (
        "A.3 | KL to a reference",
        "trl_mmreason/training/reference.py",
        "write_policy(model, args)\n        try",
        "model.config._name_or_path\n        try",
        "tests/training/test_reference.py::test_a_policy_changed_in_memory_is_its_own_reference",
    ),
    (
        "A.3 | the GRPO objective",
        TRAINER,
        "rewards[:, 0] = earned.flatten()",
        "rewards[:, 0] = earned.flatten().square()",
        f"{OF_TRAINER}without_its_parts_it_is_trls_grpo[False-dapo]",
    ),
    (
        "A.3 | Â_i is",
        "trl_mmreason/training/vllm_config.py",
        'loss_type: str = "grpo"',
        'loss_type: str = "dapo"',
        DEFAULTS,
    ),
    (
        "A.3 | P comes from",
        TRAINER,
        "errors = error_rate(first, keep)\n",
        "errors = error_rate(second, keep)\n",
        f"{OF_TRAINER}types_become_rewards_and_coefficients",
    ),
    ("Table 4 | clip ratio", RECIPE, "epsilon: 0.25 ", "epsilon: 0.2 ", TRAINED),
    ("Table 4 | top-p", RECIPE, "top_p: 0.99 ", "top_p: 1.0 ", TRAINED),
    ("Table 4 | 8 rollouts", RECIPE, "num_generations: 8 ", "num_generations: 4 ", TRAINED),
    ("Table 4 | Adam, 5e-7", RECIPE, "learning_rate: 5.0e-7 ", "learning_rate: 1.0e-6 ", TRAINED),
    ("Table 4 | truncation", RECIPE, "max_completion_length: 5000 ", "max_completion_length: 2048 ", TRAINED),
    (
        "Table 4 | low-variance KL",
        FUNCTIONAL,
        "divergence = torch.exp(difference) - difference - 1",
        "divergence = -difference",
        "tests/training/test_functional.py::test_k3_divergence",
    ),
    ("Table 4 | β_base", CONFIG, "kl_scale: float = 0.01\n", "kl_scale: float = 0.1\n", DEFAULTS),
    ("Table 4 | R₀₁", CONFIG, "base_incorrect: float = -1.0", "base_incorrect: float = -2.0", DEFAULTS),
    ("Table 4 | θ", CONFIG, "threshold: float = 0.6", "threshold: float = 0.5", DEFAULTS),
    (
        "Table 4 | K₀₁",
        CONFIG,
        '(("k_01", 1), ("k_11", -1), ("k_10", 1), ("k_00", -1))',
        '(("k_10", 1), ("k_00", -1))',
        f"{OF_CONFIG}the_signs_of_table_4_are_refused",
    ),
    ("Table 4 | K₁₀", CONFIG, "k_10: float = 0.5", "k_10: float = 0.25", DEFAULTS),
    (
        "Table 4, A.5 | eight GPUs",
        "configs/accelerate/zero3.yaml",
        "num_processes: 8",
        "num_processes: 4",
        "tests/project/test_configs.py::test_accelerate_loads_every_launcher",
    ),
    (
        "Table 1, Table 2 | which of",
        "trl_mmreason/evaluation/benchmarks/we_math.py",
        '("loose", mastered + some_wrong, all_wrong)',
        '("loose", mastered, all_wrong)',
        "tests/evaluation/test_we_math.py::test_shares_of_all_outcomes",
    ),
    (
        "A.3 | the ratio",
        CREDIT,
        "return (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)",
        "return (log_ratio * mask).sum(-1, keepdim=True)",
        f"{OF_TRAINER}a_uniform_coefficient_equals_trls_own[True-sequence-dapo]",
    ),
    (
        "A.3 | loss and",
        TRAINER,
        "    def log(self, logs: dict",
        "    def compute_loss(self, *args: Any) -> Any:\n        return 0.0\n\n    def log(self, logs: dict",
        "tests/project/test_overrides.py::test_which_classes_have_a_loss_of_their_own",
    ),
    (
        "Fig. 5 | AdaPO on",
        "configs/adapo/qwen2_vl_7b.yaml",
        "top_p: 0.99 ",
        "top_p: 1.0 ",
        f"{RECIPES}[AdaPO-qwen2_vl_7b]",
    ),
    (
        "Baselines | direct prompting",
        "trl_mmreason/generation/protocols.py",
        "turns: int = 2",
        "turns: int = 1",
        "tests/cli/test_evaluate_command.py::test_protocols_of_two_answers[two-turn]",
    ),
    (
        "Table 1 | what it is",
        "study/published.py",
        "by_seed = factors @ np.array(",
        "by_seed = 2 * factors @ np.array(",
        "tests/study/test_document.py::test_a_claim_is_computed_from_published_ones",
    ),
    (
        "C | MathVista,",
        "trl_mmreason/evaluation/benchmarks/mathematics.py",
        '_PLACES_SHOWN = {"1": "1.2, 1.3, 1.4"',
        '_PLACES_SHOWN = {"1": "1.1, 1.3, 1.4"',
        "tests/evaluation/test_benchmarks.py::test_rows_become_questions_and_answers_are_graded",
    ),
    (
        "D, Fig. 6–9 | cases",
        "trl_mmreason/evaluation/page/report.html",
        '"✓ right" if turn.correct else "✗ wrong" }}',
        '"✓ right" }}',
        "tests/evaluation/test_report.py::test_report_shows_metrics_settings_and_turns",
    ),
]
MUTATIONS = [*(Mutation(*entry) for entry in TABLE), *BASELINES]

# rows whose test nobody has yet tried with the code changed
NOT_YET: list[str] = [
    "Workflow | how C compares",
    "Table 1, Fig. 4 | AdaPO beside",
    "B, GRPO | the best",
    "B, SCoRe | how long",
]
