"""SOPHIA: a change of the code for each row of docs/audit/sophia.md, and the row's own test that fails on it."""

from tests.paper_mutations.mutation import RECIPES, VALUES, Mutation

OBJECTIVE = "trl_mmreason/sophia/objective.py"
SAMPLING = "trl_mmreason/sophia/sampling.py"
SELECTION = "trl_mmreason/sophia/selection.py"
MIXTURE = "trl_mmreason/sophia/mixture.py"
TRAINER = "trl_mmreason/sophia/trainer.py"
GRPO = "trl_mmreason/sophia/grpo.py"
PROMPTS = "trl_mmreason/sophia/prompts.py"
CONFIG = "trl_mmreason/sophia/config.py"
JUDGE = "trl_mmreason/grading/judge.py"
EXAMPLE = "examples/sophia.py"
RECIPE = "configs/sophia/internvl3_38b.yaml"

OF_OBJECTIVE = "tests/sophia/test_objective.py::test_"
OF_SAMPLING = "tests/sophia/test_sampling.py::test_"
OF_TRAINER = "tests/sophia/test_trainer.py::test_"
OF_MIXTURE = "tests/sophia/test_mixture.py::test_"
OF_PROMPTS = "tests/sophia/test_prompts.py::test_"
OF_EXAMPLE = "tests/project/test_sophia_example.py::test_"
OF_JUDGE = "tests/grading/test_judge.py::test_"
OF_GRPO = "tests/sophia/test_grpo.py::test_"
RECIPE_TEST = "tests/project/test_configs.py::test_the_recipe_of_sophia[sophia/internvl3_38b]"
DEFAULTS = f"{VALUES}[SOPHIA]"
TRAINED = f"{RECIPES}[SOPHIA-internvl3_38b]"
GRPO_DEFAULTS = f"{VALUES}[SOPHIA, GRPO]"
GRPO_TRAINED = f"{RECIPES}[SOPHIA, GRPO-internvl3_38b]"
DATA = "tests/project/test_paper_values.py::test_the_defaults_of_data_steps_are_the_papers"

TABLE = [
    (
        "Fig. 2 | the overview",
        SELECTION,
        '"reward": float(selected[question, k, n])',
        '"reward": float(not selected[question, k, n])',
        f"{OF_SAMPLING}the_worked_example",
    ),
    (
        "Eq. 1 | π(y)",
        TRAINER,
        "logps, mask = outputs.log_probs, outputs.label_mask ",
        "logps, mask = outputs.log_probs.exp(), outputs.label_mask ",
        f"{OF_TRAINER}the_loss_is_the_equation[qwen2_5_vl]",
    ),
    (
        "Eq. 2 | the reasoner",
        "trl_mmreason/sophia/protocols.py",
        '({"id": row["id"], "prompt"',
        '({"id": row["id"], "images": [__import__("PIL.Image").Image.new("RGB", (8, 8))], "prompt"',
        f"{OF_SAMPLING}who_sees_what",
    ),
    (
        "Eq. 3 | the objective",
        OBJECTIVE,
        "(logps - behavior_logps).detach(), 0.0)",
        "(behavior_logps - logps).detach(), 0.0)",
        f"{OF_OBJECTIVE}importance_weights_of_tokens_and_of_sequences",
    ),
    (
        "4.1 | captions come",
        SAMPLING,
        '{"id": row["id"], "prompt": prompt, "images"',
        '{"id": row["id"], "prompt": row["prompt"], "images"',
        f"{OF_SAMPLING}who_sees_what",
    ),
    (
        "4.1 | the reasoner answers",
        PROMPTS,
        '"question": question, "caption": caption}',
        '"question": question, "caption": ""}',
        f"{OF_SAMPLING}who_sees_what",
    ),
    (
        "Eq. 4 | R(y)",
        SELECTION,
        'bool(sample["turns"][0]["correct"])',
        "not cut",
        f"{OF_SAMPLING}the_worked_example",
    ),
    (
        "Eq. 5 | R(c)",
        OBJECTIVE,
        "torch.as_tensor(correct).float().mean(dim=1)",
        "torch.as_tensor(correct).float().amax(dim=1)",
        f"{OF_OBJECTIVE}caption_reward_is_the_share_of_right_trajectories",
    ),
    (
        "Eq. 6 | 1 for",
        OBJECTIVE,
        "(caption_rewards(right) > threshold)",
        "(caption_rewards(right) >= threshold)",
        f"{OF_OBJECTIVE}the_shortest_right_trajectory_of_a_caption_strictly_above_the_threshold_is_kept",
    ),
    (
        "Eq. 7 | the gradient",
        OBJECTIVE,
        "normalizer = len(logps) if sequence_reduction",
        "normalizer = mask.sum() if sequence_reduction",
        f"{OF_OBJECTIVE}the_loss_is_equation_7",
    ),
    (
        "Lemma A.1 | what has",
        "trl_mmreason/sophia/rewarded_rows.py",
        "checked.filter(lambda reward: reward != 0,",
        "checked.filter(lambda reward: True,",
        f"{OF_TRAINER}rows_without_reward_cost_nothing",
    ),
    (
        "Assumption A.2 | π/μ",
        OBJECTIVE,
        "log_ratio.clamp(low, high).exp()",
        "log_ratio.exp()",
        f"{OF_TRAINER}importance_weights_scale_the_loss_and_are_truncated",
    ),
    (
        "Lemma A.3 | importance",
        TRAINER,
        "            rewards,\n            mask,\n",
        "            rewards * logps.detach().sum(dim=1).exp(),\n            mask,\n",
        f"{OF_TRAINER}the_loss_is_the_equation[qwen2_5_vl]",
    ),
    (
        "Algorithm 1, 3–5 | K",
        SAMPLING,
        "settings=settings, n=sampling.captions,",
        "settings=settings, n=1,",
        f"{OF_SAMPLING}who_sees_what",
    ),
    (
        "Algorithm 1, 6–10 | N",
        SAMPLING,
        '"n": sampling.trajectories,',
        '"n": 1,',
        f"{OF_SAMPLING}the_worked_example",
    ),
    (
        "Algorithm 1, 11–13 | rewards",
        SELECTION,
        "np.argwhere(outcomes.whole if sampling.unselected else selected)",
        "np.argwhere(outcomes.whole)",
        f"{OF_SAMPLING}the_worked_example",
    ),
    (
        "Algorithm 1, 14; B.1 | a single",
        RECIPE,
        "num_train_epochs: 1                               # Appendix",
        "num_train_epochs: 3                               # Appendix",
        TRAINED,
    ),
    (
        "5.1 | QwQ",
        SAMPLING,
        "[HARD_TRAJECTORIES if one else TRAJECTORIES for one in hard]",
        "[TRAJECTORIES for one in hard]",
        f"{OF_SAMPLING}hard_questions_go_to_another_reasoner",
    ),
    (
        "5.2 | with trajectories of text",
        MIXTURE,
        '"reward": row.get("reward", 1.0),',
        '"reward": 0.0,',
        f"{OF_MIXTURE}the_columns_are_brought_together",
    ),
    (
        "5.2, B.1 | no KL",
        RECIPE,
        "beta: 0.0                                         # Appendix B.1: no KL",
        "beta: 0.01                                         # Appendix B.1: no KL",
        TRAINED,
    ),
    ("B.1 | K = N", SAMPLING, "threshold: float = 0.75", "threshold: float = 0.5", f"{DATA}[SOPHIA, trajectories]"),
    (
        "B.1, Fig. A4 | captions and",
        PROMPTS,
        "MAX_TOKENS = 32768",
        "MAX_TOKENS = 32678",
        f"{DATA}[SOPHIA, trajectories]",
    ),
    (
        "B.1 | only the language",
        "trl_mmreason/sophia/trainer.py",
        "self.parts = train_parts(self, self.args.trainable_parts)",
        "self.parts = train_parts(self, ['vision', 'projector', 'language'])",
        f"{OF_TRAINER}exactly_the_chosen_part_moves",
    ),
    (
        "B.1 | batch 512",
        RECIPE,
        "gradient_accumulation_steps: 64                   # Appendix B.1",
        "gradient_accumulation_steps: 32                   # Appendix B.1",
        RECIPE_TEST,
    ),
    (
        "B.1 | learning rate",
        RECIPE,
        "learning_rate: 2.0e-5                             # Appendix B.1",
        "learning_rate: 1.0e-5                             # Appendix B.1",
        TRAINED,
    ),
    (
        "B.1 | a cosine",
        RECIPE,
        "{min_lr_rate: 0.25}          # Appendix B.1: down",
        "{min_lr_rate: 0.1}          # Appendix B.1: down",
        TRAINED,
    ),
    (
        "B.1, E | different",
        PROMPTS,
        "if thinking_prompt is None or (THINK not in completion and END_OF_THINK not in completion):",
        "if thinking_prompt is None:",
        f"{OF_PROMPTS}what_thinks_in_tags_is_trained_under_the_thinking_prompt",
    ),
    ("B.2 | questions of the training", RECIPE, "low: 0.4 ", "low: 0.2 ", RECIPE_TEST),
    (
        "B.2 | Qwen2.5-72B-Instruct as",
        "trl_mmreason/scripts/sections.py",
        "return JudgeGrader(Chat(judge), self.rules)",
        "return self.rules",
        f"{OF_EXAMPLE}a_generative_verifier_decides_in_grpo_and_about_its_questions",
    ),
    (
        "B.2 | 64 questions",
        CONFIG,
        "max_completion_length: int | None = 16384",
        "max_completion_length: int | None = 8192",
        GRPO_DEFAULTS,
    ),
    (
        "B.2 | questions with a pass rate",
        GRPO,
        "((rates > 0) & (rates < 1))",
        "(rates > 0)",
        f"{OF_GRPO}a_group_without_contrast_takes_part_in_nothing",
    ),
    ("B.2 | learning rate 5e-7", RECIPE, "learning_rate: 5.0e-7 ", "learning_rate: 1.0e-6 ", GRPO_TRAINED),
    (
        "B.2 | all else",
        GRPO,
        "        self.parts = train_parts(self, self.args.trainable_parts)\n",
        "        self.parts = train_parts(self, ['vision', 'projector', 'language'])\n",
        f"{OF_GRPO}what_the_update_froze_stays_frozen",
    ),
    (
        "B.2 | GRPO's objective",
        "trl_mmreason/training/vllm_config.py",
        'loss_type: str = "grpo"',
        'loss_type: str = "dapo"',
        GRPO_DEFAULTS,
    ),
    ("6.2 | 480 steps", RECIPE, "max_steps: 480 ", "max_steps: 240 ", RECIPE_TEST),
    (
        "Table 5 | Random; without",
        OBJECTIVE,
        'if rule in ("sophia", "without_shortest"):',
        'if rule in ("sophia", "without_shortest", "without_caption_reward"):',
        f"{OF_OBJECTIVE}without_the_caption_reward_any_right_trajectory_may_be_the_shortest",
    ),
    (
        "Table 5 | Random; without",
        OBJECTIVE,
        'torch.ones_like(right) if rule == "random" else right',
        "right",
        f"{OF_OBJECTIVE}random_draws_among_all_without_repetition",
    ),
    ("C | pass@1", RECIPE, "top_p: 0.8 ", "top_p: 0.95 ", RECIPE_TEST),
    (
        "C, Fig. A5 | answers are",
        "trl_mmreason/generation/engine.py",
        "SamplingParams(max_new_tokens=512, temperature=0.0)",
        "SamplingParams(max_new_tokens=512, temperature=1.0)",
        f"{OF_JUDGE}the_judge_replies_greedily",
    ),
    (
        "C, Fig. A5 | answers are",
        JUDGE,
        'items[i].get("hint") or "")',
        '"")',
        f"{OF_JUDGE}the_benchmark_s_hint_has_its_place_in_the_extraction_prompt",
    ),
    (
        "C, Fig. A6 | MMMU",
        JUDGE,
        "        if not self.compare:\n",
        "        if False:\n",
        f"{OF_JUDGE}the_rules_may_decide_about_what_the_judge_extracts",
    ),
    (
        "Fig. A1, Table A1 | trajectories",
        PROMPTS,
        'return f"{THINK}\\n{text}" if end and THINK not in thoughts else text',
        "return text",
        f"{OF_PROMPTS}thoughts_that_a_template_opened_are_opened_in_the_text",
    ),
    (
        "Table A2 | SOPHIA H",
        MIXTURE,
        "f\"{row['caption']}\\n\\n{text}\" if _teaches(row) else text",
        "f\"{row['caption']}\\n\\n{text}\"",
        f"{OF_MIXTURE}captions_before_the_trajectories",
    ),
    (
        "D | captions are not",
        MIXTURE,
        '    if how == "none":\n',
        '    if how == "nothing":\n',
        f"{OF_MIXTURE}without_such_captions_the_trajectories_stay_alone",
    ),
    (
        "Table A4 | Keep-1",
        OBJECTIVE,
        "key=lambda place: int(lengths[place]))[:keep]",
        "key=lambda place: int(lengths[place]))[:1]",
        f"{OF_OBJECTIVE}the_shortest_right_trajectory_of_a_caption_strictly_above_the_threshold_is_kept",
    ),
    (
        "E, Fig. A2 | the prompt",
        PROMPTS,
        "For scatter plots, describe each point's position, color, and any patterns or clusters. ",
        "",
        f"{OF_PROMPTS}the_prompts_are_the_paper_s_word_for_word",
    ),
    (
        "E, Fig. A3 | the prompt",
        PROMPTS,
        "**Final answer** \\boxed{9}",
        "**Final answer** \\boxed{8}",
        f"{OF_PROMPTS}the_example_is_right_and_looks_at_the_image_again",
    ),
    (
        "E, Fig. A4 | the slow-thinking",
        PROMPTS,
        "5. Maintain healthy skepticism and verify multiple times\n",
        "",
        f"{OF_PROMPTS}the_prompts_are_the_paper_s_word_for_word",
    ),
    (
        "E, Fig. A4 | the same system prompt",
        EXAMPLE,
        'settings = {"sampling_params": sampling_params, "system_prompt": self.args.thinking_prompt}',
        'settings = {"sampling_params": sampling_params}',
        f"{OF_EXAMPLE}every_policy_is_measured_under_the_thinking_prompt",
    ),
    (
        "E, Fig. A4 | the same system prompt",
        "trl_mmreason/sophia/recipe.py",
        "thinking_prompt: str | None = THINKING_PROMPT",
        "thinking_prompt: str | None = None",
        RECIPE_TEST,
    ),
    (
        "5.1 | base models",
        "configs/sophia/internvl3_8b.yaml",
        "gradient_accumulation_steps: 64                   # Appendix B.1",
        "gradient_accumulation_steps: 1                    # Appendix B.1",
        "tests/project/test_configs.py::test_the_recipe_of_sophia[sophia/internvl3_8b]",
    ),
    (
        "Table 2 | the same",
        "configs/sophia/internvl3_8b.yaml",
        "max_steps: 480 ",
        "max_steps: 240 ",
        "tests/project/test_configs.py::test_the_recipe_of_sophia[sophia/internvl3_8b]",
    ),
    (
        "Table 4 | with the vision",
        TRAINER,
        "self.parts = train_parts(self, self.args.trainable_parts)",
        "self.parts = train_parts(self, ['language'])",
        f"{OF_TRAINER}exactly_the_chosen_part_moves",
    ),
    (
        "Table 1, C | which of",
        "trl_mmreason/evaluation/question_table.py",
        "(right == asked) & (asked > 0)",
        "right > 0",
        "tests/evaluation/test_results.py::test_worst_case_over_variants",
    ),
    (
        "Table A2 | SOPHIA DI",
        MIXTURE,
        'row["caption_reward"] == 1 and row["caption"] is not None',
        'row["caption"] is not None',
        f"{OF_MIXTURE}captions_beside_the_trajectories",
    ),
    (
        "Table A3 | general visual",
        MIXTURE,
        '"images": stored_images(row),',
        '"images": [],',
        f"{OF_MIXTURE}the_columns_are_brought_together",
    ),
    (
        "C | a response hint",
        "trl_mmreason/evaluation/benchmarks/mathematics.py",
        ' and provide the final value{shown} at the end."',
        ' and provide the final value{shown}."',
        "tests/evaluation/test_benchmarks.py::test_hints_of_mathvista",
    ),
    (
        "Table 6 | without warm-up",
        EXAMPLE,
        "if self.args.warm_up_dataset else self.base",
        "if True else self.base",
        f"{OF_EXAMPLE}without_a_warm_up_the_policy_that_came_is_measured",
    ),
    (
        "6.2, Table 1 | GRPO from",
        EXAMPLE,
        'self.reinforce(self.base, "base_grpo")',
        'self.reinforce(self.start, "base_grpo")',
        f"{OF_EXAMPLE}grpo_without_sophia_starts_with_the_policy_that_came",
    ),
    (
        "6.2, Table 1 | GRPO from the original",
        "study/sophia.py",
        '"InternVL3.0-38B 55.51 against 50.98", "sophia", "grpo")',
        '"InternVL3.0-38B 55.51 against 50.98", "grpo", "sophia")',
        "tests/study/test_document.py::test_published_claims_are_judged_by_the_current_rule[sophia]",
    ),
    (
        "C | all of OlympiadBench",
        "trl_mmreason/evaluation/benchmarks/mathematics.py",
        'for images in ("MM", "TO")',
        'for images in ("MM",)',
        "tests/evaluation/test_benchmark_sources.py::test_the_full_olympiadbench_has_rows_with_and_without_images",
    ),
    (
        "C | eight benchmarks",
        "trl_mmreason/evaluation/benchmarks/mathematics.py",
        'group=text(row, "problem_index"),',
        "group=None,",
        "tests/evaluation/test_benchmarks.py::test_rows_become_questions_and_answers_are_graded",
    ),
    (
        "Table 3 | plane and",
        "trl_mmreason/evaluation/benchmarks/mathematics.py",
        '        label(row, "subject"),\n        "Give the answer',
        '        None,\n        "Give the answer',
        "tests/evaluation/test_benchmarks.py::test_rows_become_questions_and_answers_are_graded",
    ),
    (
        "6.3, 6.4, D | no general",
        "trl_mmreason/scripts/sections.py",
        "        given = parse_optional_text(name, given)\n    if not isinstance(given, dict | None):",
        '        given = {"text": {"share": 1.0}}\n    if not isinstance(given, dict | None):',
        "tests/scripts/test_stages.py::test_sophia_s_recipes_mix_nothing_in_if_told_so[38b]",
    ),
    (
        "5.2 | answers are",
        "trl_mmreason/grading/extraction.py",
        '|<answer>|<\\|(?:answer_start|begin_of_box)\\|>", re.I | re.A)',
        '|<\\|(?:answer_start|begin_of_box)\\|>", re.I | re.A)',
        "tests/grading/test_labelled.py::test_label",
    ),
    (
        "5.1 | warm-up on",
        EXAMPLE,
        "if self.args.warm_up_dataset is not None:",
        "if self.args.warm_up_dataset is None:",
        f"{OF_EXAMPLE}every_stage_leaves_its_result_and_the_table_names_all",
    ),
    (
        'Table 5, 6.3 | Random "is',
        "study/sophia.py",
        '51.53 against 46.28", "random", BEFORE)',
        '51.53 against 46.28", BEFORE, "random")',
        "tests/study/test_document.py::test_published_claims_are_judged_by_the_current_rule[sophia]",
    ),
    (
        "Table 8 | 5K to 80K",
        "study/sophia.py",
        "round(share * len(rows))",
        "round(share * start.args.train_rows)",
        "tests/study/test_small_parts.py::test_sophia_in_small",
    ),
    (
        '6.2 | "more efficient data',
        "study/sophia.py",
        "write_trajectory(question_of(problem), caption(problem))",
        "write_trajectory(question_of(problem), caption(problem), slip=True)",
        "tests/study/test_small_parts.py::test_sophia_in_small",
    ),
]
MUTATIONS = [Mutation(*entry) for entry in TABLE]
