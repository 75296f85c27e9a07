"""Self-evolution: a change of the code for each row of docs/audit/self_evolution.md, which the row's test finds."""

from tests.paper_mutations.mutation import RECIPES, VALUES, Mutation

OBJECTIVE = "trl_mmreason/self_evolution/objective.py"
REWARDS = "trl_mmreason/self_evolution/rewards.py"
TRAINER = "trl_mmreason/self_evolution/trainer.py"
CONFIG = "trl_mmreason/self_evolution/config.py"
PROMPTS = "trl_mmreason/self_evolution/prompts.py"
RESPONSE = "trl_mmreason/self_evolution/response.py"
VOTING = "trl_mmreason/evaluation/voting.py"
RECIPE = "configs/self_evolution/qwen2_5_vl_7b.yaml"

OF_OBJECTIVE = "tests/self_evolution/test_objective.py::test_"
OF_TRAINER = "tests/self_evolution/test_trainer.py::test_"
OF_PROMPTS = "tests/self_evolution/test_prompts.py::test_"
OF_LENGTH = "tests/self_evolution/test_length.py::test_"
DEFAULTS = f"{VALUES}[self-evolution]"
TRAINED = f"{RECIPES}[self-evolution-qwen2_5_vl_7b]"
RECIPE_TEST = "tests/project/test_configs.py::test_the_recipe_of_self_evolution[self_evolution/qwen2_5_vl_7b]"

TABLE = [
    ("Eq. 1, Alg. 1 line 3", RECIPE, "num_generations: 8 ", "num_generations: 4 ", TRAINED),
    (
        "Alg. 1 line 4 | an answer",
        RESPONSE,
        "def read_response(text: str) -> Response:\n"
        '    """Parse a response, including the beginning that the chat template wrote."""\n'
        "    answer = extract_answer(text)\n",
        "def read_response(text: str) -> Response:\n    answer = text\n",
        "tests/self_evolution/test_response.py::test_responses",
    ),
    (
        "Eq. 2, Alg. 1 line 5",
        VOTING,
        "if first == answer or equal(first, answer):",
        "if first == answer:",
        f"{OF_OBJECTIVE}votes_use_the_grader_s_equivalence",
    ),
    (
        "Eq. 3, Alg. 1 line 6",
        OBJECTIVE,
        "shares[members] = len(members) / len(answers)",
        "shares[members] = len(members) / max(len(members), 2)",
        f"{OF_OBJECTIVE}the_worked_numbers",
    ),
    (
        "Eq. 4 and 5 | majority",
        OBJECTIVE,
        "votes[max(cluster_answers(answers, equal), key=len, default=[])] = 1.0",
        "votes[max(reversed(cluster_answers(answers, equal)), key=len, default=[])] = 1.0",
        f"{OF_OBJECTIVE}a_tie_goes_to_the_answer_that_came_first",
    ),
    (
        "Eq. 6, Alg. 1 line 7",
        REWARDS,
        'Request([{"role": "user", "content": message}], seen, seed=seed)',
        'Request([{"role": "user", "content": message}], [], seed=seed)',
        f"{OF_TRAINER}the_judge_sees_question_image_and_response_and_no_answer",
    ),
    (
        "Section 3.2 | the judge is",
        TRAINER,
        "frozen = self._judging_copy or self.ref_model or self.model_wrapped",
        "frozen = self.model_wrapped",
        f"{OF_TRAINER}the_judge_is_the_policy_as_it_came[qwen2_5_vl-full]",
    ),
    (
        "Eq. 7, Alg. 1 line 8",
        OBJECTIVE,
        "torch.sigmoid((low_threshold - scores) / low_temperature)",
        "torch.sigmoid((scores - low_threshold) / low_temperature)",
        f"{OF_OBJECTIVE}the_worked_numbers",
    ),
    (
        "Section 3.2 | the raw score",
        REWARDS,
        'if self.args.vote == "none":\n            return [None if math.isnan(score) else score ',
        'if self.args.vote == "none":\n            return [None if math.isnan(score) else score**2 ',
        f"{OF_TRAINER}the_ablations",
    ),
    (
        "Eq. 8, Alg. 1 line 9",
        REWARDS,
        "else -self.args.format_penalty for",
        "else 0.0 for",
        f"{OF_TRAINER}a_violated_format_costs_half",
    ),
    (
        "Eq. 9–11, Alg. 1 line 10",
        OBJECTIVE,
        "masked_fill(missing, -torch.inf).log_softmax(dim=1)",
        "masked_fill(missing, -torch.inf).softmax(dim=1)",
        f"{OF_OBJECTIVE}the_worked_numbers",
    ),
    (
        "Eq. 9–11, Alg. 1 line 10",
        TRAINER,
        "centred=self.args.centre_advantages)",
        "centred=True)",
        f"{OF_TRAINER}the_worked_numbers_reach_the_loss",
    ),
    (
        "Eq. 12–14, Alg. 1 lines",
        CONFIG,
        'loss_type: str = "dr_grpo"',
        'loss_type: str = "grpo"',
        f"{OF_TRAINER}the_loss_is_that_of_equation_12",
    ),
    (
        "Eq. 9–14 | an advantage",
        "trl_mmreason/functional.py",
        "return masked.sum() / (per_token.size(0) * max_tokens)",
        "return (masked.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()",
        f"{OF_LENGTH}under_a_sum_over_tokens_a_common_advantage_has_no_gradient",
    ),
    (
        "Eq. 9–14 | an advantage",
        CONFIG,
        "if self.loss_type not in TOKEN_SUMMED_LOSSES:",
        "if False:",
        f"{OF_TRAINER}what_pays_for_length_is_warned_of",
    ),
    (
        "Eq. 14, Alg. 1 line 12",
        "trl_mmreason/functional.py",
        "return masked.sum() / (per_token.size(0) * max_tokens)",
        "return masked.sum() / mask.sum()",
        f"{OF_LENGTH}under_a_sum_over_tokens_a_common_advantage_has_no_gradient",
    ),
    (
        "Section 4.1 | no answers",
        TRAINER,
        'hidden_columns = frozenset({"answer"})',
        "hidden_columns = frozenset()",
        f"{OF_TRAINER}no_reward_function_gets_the_answers",
    ),
    (
        "Section 4.1 | the judge is sampled",
        REWARDS,
        "args.judge_sampling_temperature, args.judge_top_p)",
        "args.judge_sampling_temperature, 0.9)",
        f"{OF_TRAINER}the_judge_is_asked_as_the_settings_say",
    ),
    ("Section 4.1 | λ₊", CONFIG, "low_threshold: float = 0.40", "low_threshold: float = 0.50", DEFAULTS),
    ("Section 4.1 | AdamW", RECIPE, "learning_rate: 1.0e-6 ", "learning_rate: 1.0e-5 ", TRAINED),
    ("Table 5 | train batch", RECIPE, "steps_per_generation: 64 ", "steps_per_generation: 16 ", RECIPE_TEST),
    ("Table 5 | responses of", RECIPE, "max_completion_length: 2048 ", "max_completion_length: 1024 ", TRAINED),
    (
        "Table 5 | prompts of",
        "trl_mmreason/training/prompt_length.py",
        "return rows.select([place for place in range(len(rows)) if place not in dropped])",
        "return rows",
        "tests/training/test_prompt_length.py::test_self_evolution_leaves_them_out_of_training_alone",
    ),
    (
        "Table 5 | KL loss",
        CONFIG,
        "use_bias_correction_kl: bool = False",
        "use_bias_correction_kl: bool = True",
        f"{OF_TRAINER}off_policy_ratios_are_clipped_and_the_kl_is_k3[dr_grpo]",
    ),
    (
        "Table 2 | ablations",
        REWARDS,
        'self_consistency if self.args.vote == "self_consistency" else majority_vote',
        "self_consistency",
        f"{OF_TRAINER}the_ablations",
    ),
    (
        "Table 2 | ablations",
        REWARDS,
        "        if self.args.judge:\n            rewards = rewards * judge_modulation",
        "        if False:\n            rewards = rewards * judge_modulation",
        f"{OF_TRAINER}the_ablations",
    ),
    (
        "Table 4, G | pass@10",
        "trl_mmreason/evaluation/metrics.py",
        "return 1.0 - math.comb(n - c, k) / math.comb(n, k)",
        "return 1.0 - (1 - c / n) ** k",
        "tests/evaluation/test_metrics.py::test_pass_at_k",
    ),
    (
        "Table 4, G | pass@10",
        "study/self_evolution.py",
        '"0.54 against 0.48", "ours", "majority")',
        '"0.54 against 0.48", "majority", "ours")',
        "tests/study/test_document.py::test_published_claims_are_judged_by_the_current_rule[self_evolution]",
    ),
    (
        "Fig. 1 | an example",
        REWARDS,
        "means = [fmean(scores) if scores else -math.inf for scores in known]",
        "means = [max(scores) if scores else -math.inf for scores in known]",
        f"{OF_TRAINER}the_winner_of_the_judge",
    ),
    (
        "Fig. 1 | an example",
        REWARDS,
        "if mean == max(means)]",
        "if mean == min(means)]",
        f"{OF_TRAINER}metrics_of_the_winners",
    ),
    (
        "Fig. 2 | the overview",
        TRAINER,
        "log_sum_exp_advantages(groups, self.args.alpha,",
        "log_sum_exp_advantages(groups, 2 * self.args.alpha,",
        f"{OF_TRAINER}the_worked_numbers_reach_the_loss",
    ),
    (
        "A.1, A.2 | A is",
        OBJECTIVE,
        "    scaled = alpha * rewards\n",
        "    scaled = alpha * rewards + 1e-3 * torch.arange(rewards.shape[1])\n",
        f"{OF_OBJECTIVE}the_advantages_are_the_log_of_a_softmax",
    ),
    (
        "A.9 | α",
        OBJECTIVE,
        "    scaled = alpha * rewards\n",
        "    scaled = rewards\n",
        f"{OF_OBJECTIVE}a_large_alpha_leaves_one_winner",
    ),
    (
        "A.10 | a one-hot",
        OBJECTIVE,
        "votes[max(cluster_answers(answers, equal), key=len, default=[])] = 1.0",
        "votes[max(cluster_answers(answers, equal), key=len, default=[])] = 0.5",
        f"{OF_OBJECTIVE}a_tie_goes_to_the_answer_that_came_first",
    ),
    (
        "Alg. 1 line 2 | batches",
        TRAINER,
        "return outcome\n        total =",
        "return outcome\n        hint = len(str(self._rows[0].get('answer')))\n"
        "        outcome = replace(outcome, rewards=outcome.rewards * hint)\n        total =",
        f"{OF_TRAINER}no_label_is_read",
    ),
    (
        "D | the actor's prompt, and",
        RESPONSE,
        'return Response(answer, is_single and match is not None and _is_balanced(match["inside"]), is_single)',
        "return Response(answer, is_single, is_single)",
        "tests/self_evolution/test_response.py::test_responses",
    ),
    (
        "D | where the actor's prompt",
        TRAINER,
        "        self.eval_system_prompt = args.eval_system_prompt\n",
        "",
        "tests/self_evolution/test_evaluation_prompt.py::"
        "test_the_official_prompt_is_the_question_in_the_model_s_own_template[qwen2_5_vl]",
    ),
    (
        "D | the judge's prompt",
        PROMPTS,
        "Only valid JSON enclosed in the above tags is accepted.",
        "Only JSON enclosed in the above tags is accepted.",
        f"{OF_PROMPTS}the_prompts_are_the_paper_s_word_for_word",
    ),
    (
        "D | the overall score",
        PROMPTS,
        '{"answer_correctness": 0.5, "reasoning_quality": 0.3, "visual_grounding": 0.2}',
        '{"answer_correctness": 0.5, "reasoning_quality": 0.2, "visual_grounding": 0.3}',
        f"{OF_PROMPTS}the_score_is_made_of_its_parts",
    ),
    (
        "D | all scores are 0",
        REWARDS,
        "scores[seed] if response.is_single else 0.0 for",
        "scores[seed] if response.is_single else math.nan for",
        f"{OF_TRAINER}a_response_without_one_clear_answer_is_scored_0_unseen",
    ),
    (
        "D | a reply that is not valid",
        REWARDS,
        "ATTEMPTS = 2 ",
        "ATTEMPTS = 1 ",
        f"{OF_TRAINER}a_reply_that_cannot_be_read_is_asked_for_once_more",
    ),
    (
        "D | evaluations use",
        CONFIG,
        "return self.actor_prompt if self.actor_prompt_in_evaluation else None",
        "return self.actor_prompt",
        "tests/self_evolution/test_evaluation_prompt.py::"
        "test_the_official_prompt_is_the_question_in_the_model_s_own_template[qwen2_5_vl]",
    ),
    (
        "Table 6, G | distributional",
        TRAINER,
        '        if self.args.advantages == "grpo":\n            return outcome\n',
        "",
        f"{OF_TRAINER}the_ablations",
    ),
    (
        "Table 7, G | Agree",
        REWARDS,
        "means = [fmean(scores) if scores else -math.inf for scores in known]",
        "means = [sum(scores) if scores else -math.inf for scores in known]",
        f"{OF_TRAINER}the_winner_of_the_judge",
    ),
    (
        "C.3 | We-Math's four",
        "trl_mmreason/evaluation/benchmarks/we_math.py",
        '("strict", mastered, some_wrong + all_wrong)',
        '("strict", mastered + all_wrong, some_wrong)',
        "tests/evaluation/test_we_math.py::test_shares_of_all_outcomes",
    ),
    (
        "Table 1 | which of",
        "trl_mmreason/evaluation/question_table.py",
        "(right == asked) & (asked > 0)",
        "right > 0",
        "tests/evaluation/test_results.py::test_worst_case_over_variants",
    ),
    (
        "Table 3 | Qwen2.5-VL-3B",
        "configs/self_evolution/internvl3_8b.yaml",
        "gradient_accumulation_steps: 16 ",
        "gradient_accumulation_steps: 8 ",
        "tests/project/test_configs.py::test_the_recipe_of_self_evolution[self_evolution/internvl3_8b]",
    ),
    (
        "Tables 8–10 | accuracy",
        "trl_mmreason/evaluation/results.py",
        "if each == kind]",
        "if each]",
        "tests/evaluation/test_results.py::test_categories",
    ),
    (
        "Section 4.1, C.3 | MathVision",
        "trl_mmreason/evaluation/benchmarks/mathematics.py",
        'lettered(listed(row, "options"), "options"))\n\n\ndef _we_math',
        "None)\n\n\ndef _we_math",
        "tests/evaluation/test_benchmarks.py::test_rows_become_questions_and_answers_are_graded",
    ),
    (
        "Table 5 | image key",
        "trl_mmreason/data/row_columns.py",
        '"images": ("image", "image_path",',
        '"images": ("image_path",',
        "tests/data/test_data.py::test_columns_are_found_by_name_by_synonym_and_by_mapping",
    ),
    (
        "Table 7 | a batch",
        "study/logged.py",
        "size = max(1, len(values) // 4)",
        "size = max(1, len(values) // 2)",
        "tests/study/test_logged.py::test_a_quarter_is_of_the_entries_that_have_the_value",
    ),
    (
        "Table 1 | better than",
        "study/self_evolution.py",
        'if settings.pop("labels", False):',
        'if not settings.pop("labels", True):',
        "tests/study/test_small_parts.py::test_self_evolution_in_small",
    ),
    (
        "Table 1 | better than the base",
        "study/self_evolution.py",
        'above("ours", "labels", "accuracy")',
        'above("labels", "ours", "accuracy")',
        "tests/study/test_document.py::test_published_claims_are_judged_by_the_current_rule[self_evolution]",
    ),
    (
        "Figs. 3 and 4 | entropy,",
        TRAINER,
        'measures: dict[str, list[bool]] = {"accuracy":',
        'measures: dict[str, list[bool]] = {"right":',
        "tests/project/test_self_evolution_example.py::test_it_trains_and_is_measured_before_and_after",
    ),
    (
        "Figs. 3 and 4 | entropy,",
        "study/self_evolution.py",
        '    "entropy": ("Entropy (Figs. 3 and 4)", "nats per token"),\n',
        "",
        "tests/study/test_small_parts.py::test_self_evolution_in_small",
    ),
]
MUTATIONS = [Mutation(*entry) for entry in TABLE]
