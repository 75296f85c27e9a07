"""Chain-of-Step: a change of the code for each row of docs/audit/chain_of_step.md, which the row's test finds."""

from tests.paper_mutations.mutation import RECIPES, VALUES, Mutation

OBJECTIVE = "trl_mmreason/chain_of_step/objective.py"
TEMPLATE = "trl_mmreason/chain_of_step/template.py"
TOKENS = "trl_mmreason/chain_of_step/tokens.py"
DATA = "trl_mmreason/chain_of_step/data.py"
PROMPTS = "trl_mmreason/chain_of_step/prompts.py"
PAIRS = "trl_mmreason/chain_of_step/pairs.py"
DPO = "trl_mmreason/chain_of_step/dpo.py"
GRPO = "trl_mmreason/chain_of_step/grpo.py"
SEARCH = "trl_mmreason/chain_of_step/search.py"
CHAINS = "trl_mmreason/chain_of_step/chains.py"
CONFIG = "trl_mmreason/chain_of_step/config.py"
REWARD_TRAINER = "trl_mmreason/chain_of_step/process_reward_trainer.py"
PATTERNS = "trl_mmreason/baselines/patterns.py"
RECIPE = "configs/chain_of_step/internvl2_5_mpo_8b.yaml"

OF_OBJECTIVE = "tests/chain_of_step/test_objective.py::test_"
OF_TEMPLATE = "tests/chain_of_step/test_template.py::test_"
OF_TOKENS = "tests/chain_of_step/test_tokens.py::test_"
OF_DATA = "tests/chain_of_step/test_step_data.py::test_"
OF_ANNOTATION = "tests/chain_of_step/test_annotation.py::test_"
OF_PROMPTS = "tests/chain_of_step/test_prompts.py::test_"
OF_PAIRS = "tests/chain_of_step/test_pairs.py::test_"
OF_STEP_PAIRS = "tests/chain_of_step/test_step_pairs.py::test_"
OF_DPO = "tests/chain_of_step/test_dpo.py::test_"
OF_GRPO = "tests/chain_of_step/test_grpo.py::test_"
OF_SEARCH = "tests/chain_of_step/test_search.py::test_"
OF_REWARD = "tests/chain_of_step/test_process_reward_trainer.py::test_"
OF_PATTERNS = "tests/baselines/test_patterns.py::test_"
OF_SCALING = "tests/evaluation/test_scaling.py::test_"
RECIPE_TEST = "tests/project/test_configs.py::test_the_recipe_of_chain_of_step[chain_of_step/internvl2_5_mpo_8b]"
DPO_DEFAULTS = f"{VALUES}[Chain-of-Step, DPO]"
DATA_DEFAULTS = "tests/project/test_paper_values.py::test_the_defaults_of_data_steps_are_the_papers"


def trained(stage):
    return f"{RECIPES}[Chain-of-Step, {stage}-internvl2_5_mpo_8b]"


TABLE = [
    (
        "3.1 | a step has",
        TEMPLATE,
        'for part in ("name", "thought", "reflection")',
        'for part in ("name", "reflection", "thought")',
        f"{OF_TEMPLATE}a_whole_chain",
    ),
    (
        "3.1, A | the format",
        TOKENS,
        "AddedToken(token, special=False, normalized=False)",
        "AddedToken(token, special=True, normalized=False)",
        f"{OF_TOKENS}a_chain_is_encoded_with_these_ids_and_decoded_as_it_was",
    ),
    (
        "A, Table 6 | 11 tokens",
        TOKENS,
        '"Delimiter token between reasoning steps"',
        '"Delimiter token of reasoning steps"',
        f"{OF_TOKENS}the_definitions_are_those_of_table_6",
    ),
    (
        "A | a token starts",
        TOKENS,
        "weight[source].float().mean(dim=0)",
        "weight[source].float()[0]",
        f"{OF_TOKENS}rows_start_at_the_mean_of_their_definitions_and_survive_saving",
    ),
    (
        "Fig. 7 | the layout",
        TEMPLATE,
        "if token is None or token[0] not in expected or self._gap.strip():",
        "if token is None or token[0] not in expected or self._gap:",
        f"{OF_TEMPLATE}the_layout_of_fig_7_with_a_line_for_each_token",
    ),
    (
        "3.2 | a teacher",
        DATA,
        'return Request(with_system_message([{"role": "user", "content": message}], prompt), images_of(row))',
        'return Request(with_system_message([{"role": "user", "content": message}], prompt))',
        f"{OF_DATA}the_teacher_is_told_the_first_answer_and_shown_the_images",
    ),
    (
        "3.2 | wrong answers",
        DATA,
        "        if not verdict.correct:\n            raise MalformedReply",
        "        if False:\n            raise MalformedReply",
        f"{OF_DATA}each_question_becomes_a_row_or_is_counted",
    ),
    (
        "B, Fig. 8 | the prompt",
        PROMPTS,
        "must be no less than 5 and",
        "must be no less than 4 and",
        f"{OF_PROMPTS}the_prompts_are_the_paper_s_word_for_word",
    ),
    (
        "B, Fig. 8 | 5 to 10",
        PROMPTS,
        "if not min_steps <= len(sections) <= max_steps:",
        "if not len(sections) <= max_steps:",
        f"{OF_PROMPTS}five_to_ten_steps_are_asked_for",
    ),
    (
        "B, Fig. 8 | guideline 5",
        PROMPTS,
        'return f"Question: {question}\\nReference answer: {answer}"\n',
        'return f"Question: {question}\\nReference answer: {answer}\\nExplanation:"\n',
        f"{OF_DATA}the_teacher_is_told_the_first_answer_and_shown_the_images",
    ),
    (
        "3.3 | Monte Carlo",
        OBJECTIVE,
        "return outcomes.float().mean(dim=1), outcomes",
        "return outcomes.float().amax(dim=1), outcomes",
        f"{OF_OBJECTIVE}monte_carlo_labels_are_shares_and_whether_there_is_any",
    ),
    (
        "3.3 | judge: in",
        OBJECTIVE,
        'RATING_VALUES["Neutral"] if answer_correct else RATING_VALUES["Good"]',
        'RATING_VALUES["Neutral"]',
        f"{OF_OBJECTIVE}all_six_cells_of_the_judges_labels",
    ),
    (
        "3.3 | judge: in",
        DATA,
        'judge_labels(replies[ids[k]].payload["ratings"], correct[k])',
        'judge_labels(replies[ids[k]].payload["ratings"], True)',
        f"{OF_ANNOTATION}ratings_become_labels_by_the_answer",
    ),
    (
        "B, Fig. 9 | the judge's",
        PROMPTS,
        "    if len(labels) != steps:\n",
        "    if False:\n",
        f"{OF_PROMPTS}malformed_ratings_are_named",
    ),
    (
        "3.4, Eq. 1 | the PRM",
        OBJECTIVE,
        "binary_cross_entropy_with_logits(difference, target,",
        "binary_cross_entropy_with_logits(difference, (target >= 0.5).float(),",
        f"{OF_OBJECTIVE}prm_loss_of_a_soft_label",
    ),
    (
        "Eq. 1, F | the loss",
        REWARD_TRAINER,
        "num_labels = labelled.sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)",
        "num_labels = labelled.sum()",
        f"{OF_REWARD}gradient_accumulation_does_not_change_the_update",
    ),
    ("3.4 | 16 paths", CONFIG, "num_paths: int = 16", "num_paths: int = 8", DPO_DEFAULTS),
    (
        "3.4 | score: weighted",
        OBJECTIVE,
        "return step_weight * mean + (1 - step_weight) * answer",
        "return (1 - step_weight) * mean + step_weight * answer",
        f"{OF_OBJECTIVE}trajectory_score_at_the_specifications_numbers",
    ),
    (
        "3.4 | the scores of a pair",
        OBJECTIVE,
        "if margins[pair] > threshold + _ROUNDING]",
        "if margins[pair] >= threshold - _ROUNDING]",
        f"{OF_OBJECTIVE}a_margin_of_exactly_the_threshold_is_too_small",
    ),
    (
        "3.4 | t, and how",
        OBJECTIVE,
        "wide.sort(key=lambda pair: -margins[pair])",
        "wide.sort(key=lambda pair: margins[pair])",
        f"{OF_PAIRS}further_pairs_of_a_question",
    ),
    (
        "3.4, Eq. 2 | DPO with",
        PAIRS,
        'return {**batch, "completion_mask": last_part_mask(is_end, mask.bool()).to(mask.dtype)}',
        "return batch",
        f"{OF_STEP_PAIRS}the_rewards_are_those_of_the_parts",
    ),
    (
        "Eq. 2 | both ratios",
        PAIRS,
        '"rejected": [_as_completion(pair.rejected) for pair in pairs]',
        '"rejected": [_as_completion(pair.chosen) for pair in pairs]',
        f"{OF_STEP_PAIRS}the_rewards_are_those_of_the_parts",
    ),
    (
        "3.4 | the policy of a round",
        DPO,
        "                    self._become(number - 1)\n",
        "                    self._become(0)\n",
        f"{OF_DPO}the_reference_is_the_sft_model_in_all_rounds_and_the_policy_moves_on",
    ),
    (
        "3.4 | three rounds",
        DPO,
        "for number in range(1, self.args.rounds + 1):",
        "for number in range(1, 2):",
        f"{OF_DPO}the_second_round_begins_with_the_first_one_s_policy_against_the_same_reference",
    ),
    ("4.1 | SFT for one", RECIPE, "rounds: 3 ", "rounds: 2 ", trained("DPO")),
    (
        "4.1 | PRM: two",
        RECIPE,
        "num_train_epochs: 2 ",
        "num_train_epochs: 1 ",
        trained("process reward"),
    ),
    (
        "4.3.1, Fig. 3 | best",
        "trl_mmreason/evaluation/scaling.py",
        "right = np.stack([best_of_n(correct, scores[..., place], n) for place",
        "right = np.stack([best_of_n(correct, scores[..., 0], n) for place",
        f"{OF_SCALING}the_sweep_of_the_step_weight_rises_and_falls",
    ),
    (
        "4.3.1 | the step weight",
        GRPO,
        "score_paths(self._scored.finish, rows, paths, self.step_weight)",
        "score_paths(self._scored.finish, rows, paths)",
        f"{OF_GRPO}the_step_weight_reaches_the_rewards",
    ),
    (
        "4.3.2, Fig. 4 | step beam",
        SEARCH,
        "for choose in (max, min))",
        "for choose in (min, max))",
        f"{OF_SEARCH}the_best_candidate_of_each_stage_is_kept",
    ),
    (
        "4.3.2, Fig. 5 | pass@N",
        "trl_mmreason/evaluation/scaling.py",
        'metrics["accuracy" if n == 1 else f"{kind}_{n}"]',
        'metrics["accuracy"]',
        f"{OF_SCALING}every_point_of_the_curves",
    ),
    (
        "4.3.2 | it costs",
        "trl_mmreason/evaluation/scaling.py",
        "ScalingPoint(right, n * tokens)",
        "ScalingPoint(right, tokens)",
        f"{OF_SCALING}tokens",
    ),
    ("Fig. 5 | N from", RECIPE, "  n: 64 ", "  n: 16 ", RECIPE_TEST),
    (
        "4.3.3, Table 2 | pairs by outcome",
        DPO,
        "[float(bool(path.correct)) if path.score is None",
        "[float(not path.correct) if path.score is None",
        f"{OF_DPO}outcome_pairs_are_right_against_wrong_answers",
    ),
    (
        "4.3.3, Table 2 | pairs by the PRM",
        DPO,
        "ChainScorer(self.process_reward, args.step_weight)",
        "ChainScorer(self.process_reward, 0.2)",
        f"{OF_DPO}the_step_weight_reaches_the_pairs",
    ),
    (
        "4.3.4, Table 3 | accuracy",
        REWARD_TRAINER,
        'for part, columns in (("step", STEPS), ("answer", ANSWER)):',
        'for part, columns in (("step", ANSWER), ("answer", STEPS)):',
        f"{OF_REWARD}metrics_by_hand",
    ),
    (
        "4.3.5, Fig. 6 | steps",
        CHAINS,
        '"steps": mean([path.read.steps for path in paths])',
        '"steps": mean([path.read.steps for path in paths if path.read.problem is None])',
        "tests/chain_of_step/test_chains.py::test_measures_by_hand",
    ),
    (
        "4.4, Table 4 | No Reason",
        PATTERNS,
        "write = one_text if pattern == DIRECT_PROMPT else _answer",
        "write = one_text",
        f"{OF_PATTERNS}the_rows_of_a_pattern",
    ),
    (
        "4.4, Table 4 | Direct",
        PATTERNS,
        '"\\n".join(step.thought for step in chain.steps)',
        '"\\n".join(step.name for step in chain.steps)',
        f"{OF_PATTERNS}the_rows_of_a_pattern",
    ),
    (
        "4.4 | wording",
        PATTERNS,
        "{thoughts}\\n<answer>{extract_answer(answer) or answer}</answer>",
        "{thoughts}\\n{extract_answer(answer) or answer}",
        f"{OF_PATTERNS}the_rows_of_a_pattern",
    ),
    (
        "4.4, Table 4 | both are",
        DPO,
        "Chains() if args.chains else Direct(), **asking)",
        "Chains(), **asking)",
        f"{OF_PATTERNS}dpo_by_outcome_on_answers_that_are_no_chains",
    ),
    (
        "4.5, Table 5 | GRPO with",
        GRPO,
        "return self.outcome_reward if self.process_reward is None else self.trajectory_reward",
        "return self.outcome_reward",
        f"{OF_GRPO}rewards_by_hand_reach_the_advantages_and_the_log",
    ),
    ("4.5 | batch 128", CONFIG, "max_steps: int = 100", "max_steps: int = 200", f"{VALUES}[Chain-of-Step, GRPO]"),
    (
        "4.5 | the loss",
        "trl_mmreason/training/vllm_config.py",
        'loss_type: str = "grpo"',
        'loss_type: str = "dapo"',
        f"{VALUES}[Chain-of-Step, GRPO]",
    ),
    (
        "4.5 | whether 128",
        RECIPE,
        "per_device_train_batch_size: 5 ",
        "per_device_train_batch_size: 1 ",
        RECIPE_TEST,
    ),
    ("C, Table 7 | learning rates", RECIPE, "learning_rate: 5.0e-6 ", "learning_rate: 1.0e-5 ", trained("SFT")),
    ("C, Table 7 | epochs", CONFIG, "num_train_epochs: float = 1.0", "num_train_epochs: float = 3.0", DPO_DEFAULTS),
    (
        "C, Table 7 | batches",
        RECIPE,
        "gradient_accumulation_steps: 32 ",
        "gradient_accumulation_steps: 16 ",
        RECIPE_TEST,
    ),
    (
        "C, Table 7 | projector",
        REWARD_TRAINER,
        "        if args.freeze_vision_encoder:\n",
        "        if False:\n",
        f"{OF_REWARD}the_vision_encoder_is_frozen_unless_asked[qwen2_5_vl]",
    ),
    ("C | temperature", CONFIG, "top_p: float = 0.95", "top_p: float = 1.0", DPO_DEFAULTS),
    (
        "E | step-wise DPO",
        OBJECTIVE,
        "return completion_mask & (ends_before == ends.sum(dim=1, keepdim=True) - 1)",
        "return completion_mask",
        f"{OF_STEP_PAIRS}nothing_but_the_parts_is_learnt[qwen2_5_vl]",
    ),
    (
        "E | which bad one",
        PAIRS,
        "if select_pairs((score, worst_score), threshold):",
        "if select_pairs((score, worst_score), 0.0):",
        f"{OF_STEP_PAIRS}the_best_and_the_worst_candidate_of_every_stage",
    ),
    (
        "E, Table 9 | step-wise",
        OBJECTIVE,
        "    return completion_mask & (ends_before == ends.sum(dim=1, keepdim=True) - 1)",
        "    return completion_mask & (ends_before < ends.sum(dim=1, keepdim=True))",
        f"{OF_STEP_PAIRS}the_rewards_are_those_of_the_parts",
    ),
    (
        "3.4 | how the PRM",
        "trl_mmreason/chain_of_step/process_reward.py",
        "differences.sigmoid().cpu()",
        "differences.exp().clamp(max=1).cpu()",
        "tests/chain_of_step/test_process_reward.py::test_one_pass_equals_full_logits_of_every_prefix",
    ),
    (
        "3.3 | the process reward",
        GRPO,
        "    def score_groups(self, rewards",
        "    def compute_loss(self, *args: Any) -> Any:\n        return 0.0\n\n    def score_groups(self, rewards",
        "tests/project/test_overrides.py::test_which_classes_have_a_loss_of_their_own",
    ),
    (
        "4.3.2 | how a step",
        SEARCH,
        "float(steps[-1]) if answer is None else answer for",
        "float(steps[-1]) if answer is None else 0.2 * float(sum(steps)) + 0.8 * answer for",
        f"{OF_SEARCH}a_step_and_an_answer_in_one_stage_are_told_apart_by_their_own_scores",
    ),
    (
        "C | 8 GPUs",
        RECIPE,
        "gradient_accumulation_steps: 8                    # Table 7: see above\n\ndpo",
        "gradient_accumulation_steps: 4                    # Table 7: see above\n\ndpo",
        RECIPE_TEST,
    ),
    (
        "4.5 | the PRM is a",
        "trl_mmreason/chain_of_step/process_reward_client.py",
        "Scores(torch.tensor(scores[:steps]), scores[steps] if answers else None)",
        "Scores(torch.tensor(scores[:steps]), scores[0] if answers else None)",
        f"{OF_GRPO}a_server_pays_what_a_model_in_process_pays",
    ),
    (
        "Fig. 1 | one PRM",
        "trl_mmreason/chain_of_step/process_reward_client.py",
        "Scores(torch.tensor(scores[:steps]), scores[steps] if answers else None)",
        "Scores(1 - torch.tensor(scores[:steps]), scores[steps] if answers else None)",
        f"{OF_GRPO}a_server_pays_what_a_model_in_process_pays",
    ),
    (
        "4.1 | LLaVA-NeXT",
        "configs/chain_of_step/llava_next_8b.yaml",
        "  rounds: 3 ",
        "  round: 3 ",
        "tests/project/test_configs.py::test_every_section_of_chain_of_step_is_a_stage_s_configuration[chain_of_step/llava_next_8b]",
    ),
    (
        "Fig. 1 | data, SFT,",
        "trl_mmreason/chain_of_step/recipe.py",
        '"prm": "prm/table.txt",\n        "dpo": "dpo/rounds.png",',
        '"dpo": "dpo/rounds.png",\n        "prm": "prm/table.txt",',
        "tests/project/test_chain_of_step_example.py::test_every_stage_leaves_its_result_and_the_table_names_all",
    ),
]
MUTATIONS = [Mutation(*entry) for entry in TABLE]
