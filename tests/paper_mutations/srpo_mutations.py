"""SRPO: a change of the code for each row of docs/audit/srpo.md, and the row's own test that fails on it."""

from tests.paper_mutations.mutation import RECIPES, VALUES, Mutation

OBJECTIVE = "trl_mmreason/srpo/objective.py"
REWARDS = "trl_mmreason/srpo/rewards.py"
TRAINER = "trl_mmreason/srpo/trainer.py"
CONFIG = "trl_mmreason/srpo/config.py"
COLD_START = "trl_mmreason/srpo/cold_start.py"
SELECTION = "trl_mmreason/srpo/selection.py"
RESPONSE = "trl_mmreason/srpo/response.py"
PROMPTS = "trl_mmreason/srpo/prompts.py"
RECIPE = "configs/srpo/qwen2_5_vl_7b.yaml"

OF_OBJECTIVE = "tests/srpo/test_objective.py::test_"
OF_REWARDS = "tests/srpo/test_rewards.py::test_"
OF_TRAINER = "tests/srpo/test_trainer.py::test_"
OF_COLD_START = "tests/srpo/test_cold_start.py::test_"
OF_RESPONSE = "tests/srpo/test_response.py::test_"
WORDS = "tests/srpo/test_prompts.py::test_the_prompts_are_the_paper_s_word_for_word"
TABLE_OF_REWARDS = f"{OF_REWARDS}the_whole_table"
CURVES = f"{OF_TRAINER}curves_of_the_paper_are_drawn_from_what_is_logged"
DEFAULTS = f"{VALUES}[SRPO]"
TRAINED = f"{RECIPES}[SRPO-qwen2_5_vl_7b]"

TABLE = [
    (
        "3.1.1, Fig. 2 | the policy writes",
        COLD_START,
        "        system_prompt=making.cot_prompt,\n",
        "        system_prompt=making.system_prompt,\n",
        f"{OF_COLD_START}every_party_sees_question_and_images",
    ),
    (
        "B.1 | DeepSeek-V3 assesses",
        SELECTION,
        "key=scores.__getitem__, reverse=True)",
        "key=scores.__getitem__)",
        f"{OF_COLD_START}the_best_rated_are_reflected_on_and_the_rest_is_counted",
    ),
    (
        "3.1.1, B.1 | about 30 %",
        SELECTION,
        "rights = round(right_share * total)",
        "rights = round((1 - right_share) * total)",
        "tests/srpo/test_selection.py::test_the_mix_stays",
    ),
    (
        "3.1.1 | a larger model",
        COLD_START,
        "prompt = teacher_prompt(question, cot, answer, solution.ground_truth,",
        "prompt = teacher_prompt(question, answer, answer, solution.ground_truth,",
        f"{OF_COLD_START}each_answer_becomes_a_row_or_is_counted",
    ),
    (
        "3.1.1 | a sample is",
        COLD_START,
        "<answer>{solution.ground_truth}</answer>",
        "<answer>{solution.answer}</answer>",
        f"{OF_COLD_START}the_true_answer_reaches_the_teacher_alone",
    ),
    (
        "Eq. 1 | cold start",
        "trl_mmreason/training/sft.py",
        '{"role": "assistant", "content": text}',
        '{"role": "assistant", "content": text.rpartition("<answer>")[0]}',
        "tests/srpo/test_sft.py::test_the_loss_is_on_every_token_of_the_assistant_and_on_no_other[qwen2_5_vl-full]",
    ),
    (
        "Eq. 2 | the GRPO objective",
        REWARDS,
        "return self._rewards(batch, self.effect)",
        "return self._rewards(batch, lambda score: -self.effect(score))",
        f"{OF_TRAINER}every_loss_of_trl[grpo]",
    ),
    (
        "Eq. 3, B.2 | advantages",
        REWARDS,
        "FORMAT * score.response.has_solution_format",
        "FORMAT * bool(score.second_correct)",
        f"{OF_TRAINER}advantages_follow_the_total",
    ),
    (
        "3.2.2 | the format",
        RESPONSE,
        "        problem=fault or left_over or _problem(text, blocks, slots),\n",
        "        problem=fault or left_over,\n",
        f"{OF_RESPONSE}parts_and_problems",
    ),
    (
        "Eq. 4 | the reward is",
        REWARDS,
        "self.effectiveness_reward, self.brevity_reward]",
        "self.effectiveness_reward]",
        f"{OF_TRAINER}brevity_is_part_of_the_total",
    ),
    ("Eq. 5 | R_format", OBJECTIVE, "FORMAT = 0.5", "FORMAT = 1.0", TABLE_OF_REWARDS),
    (
        "Eq. 5 | R_accuracy",
        REWARDS,
        "ACCURACY * bool(score.first_correct)",
        "ACCURACY * bool(score.second_correct)",
        TABLE_OF_REWARDS,
    ),
    (
        "Eq. 6 | R_reflection",
        REWARDS,
        "return self.brevity_coef * float(brevity",
        "return float(brevity",
        f"{OF_REWARDS}brevity_counts_sampled_ids",
    ),
    (
        "3.2.2 | I_ref",
        REWARDS,
        "REFLECTION * score.response.has_reflection_format",
        "REFLECTION * (score.response.reflection is not None)",
        TABLE_OF_REWARDS,
    ),
    (
        "Eq. 7 | f_len",
        OBJECTIVE,
        "torch.exp(-distance) ** 2",
        "torch.exp(-distance)",
        f"{OF_OBJECTIVE}brevity_at_the_specifications_lengths",
    ),
    (
        "3.2.2 (ii) | f_len",
        REWARDS,
        "torch.tensor(score.tokens), torch.tensor(score.first_tokens)",
        "torch.tensor(score.reflection_tokens), torch.tensor(score.first_tokens)",
        f"{OF_REWARDS}brevity_counts_sampled_ids",
    ),
    (
        "Eq. 8 | I_eff",
        OBJECTIVE,
        "((0.0, 0.5), (-0.25, 0.25))",
        "((0.0, 0.5), (0.0, 0.25))",
        f"{OF_OBJECTIVE}all_four_cells_of_the_effectiveness_table",
    ),
    (
        "Eq. 8 | nothing is said",
        REWARDS,
        "counts = score.response.has_reflection_format if self.missing_second_is_wrong else score.solves_again",
        "counts = score.solves_again",
        TABLE_OF_REWARDS,
    ),
    (
        "Eq. 8 | nothing is said",
        CONFIG,
        "missing_second_is_wrong: bool = True",
        "missing_second_is_wrong: bool = False",
        "tests/srpo/test_config.py::test_the_defaults_are_the_papers",
    ),
    (
        "1, 4.3 | reflections",
        REWARDS,
        '"correction_share": not first and second,',
        '"correction_share": second,',
        f"{OF_REWARDS}what_is_logged",
    ),
    ("4.1 | α is", CONFIG, "brevity_coef: float = 0.1\n", "brevity_coef: float = 1.0\n", DEFAULTS),
    ("4.1 | T_target is", CONFIG, "max_ratio: float = 2.5", "max_ratio: float = 3.0", DEFAULTS),
    (
        "4.1 | the original length",
        REWARDS,
        "first_tokens=0 if first is None else tokens(first),",
        "first_tokens=0 if first is None else tokens(len(response.first_think or '')),",
        f"{OF_REWARDS}brevity_counts_sampled_ids",
    ),
    (
        "4.1 | Qwen2.5-VL-7B-Instruct on 8",
        RECIPE,
        "steps_per_generation: 64 ",
        "steps_per_generation: 32 ",
        "tests/project/test_configs.py::test_whole_groups_fit_the_processes_of_the_launcher[srpo/qwen2_5_vl_7b]",
    ),
    (
        "4.1 | 1 epoch",
        "configs/reflection_sft/qwen2_5_vl_7b.yaml",
        "num_train_epochs: 1 ",
        "num_train_epochs: 3 ",
        f"{RECIPES}[cold start of SRPO-qwen2_5_vl_7b]",
    ),
    ("4.1 | 3 epochs", RECIPE, "num_train_epochs: 3 ", "num_train_epochs: 1 ", TRAINED),
    (
        "4.1, B.2 | rollout and training",
        RECIPE,
        "gradient_accumulation_steps: 8 ",
        "gradient_accumulation_steps: 64 ",
        "tests/project/test_configs.py::test_whole_groups_fit_the_processes_of_the_launcher[srpo/qwen2_5_vl_7b]",
    ),
    ("4.1, B.2 | 8 rollouts", RECIPE, "num_generations: 8 ", "num_generations: 4 ", TRAINED),
    ("4.1, B.2 | temperature", RECIPE, "temperature: 1.0 ", "temperature: 0.7 ", TRAINED),
    ("4.1, B.2 | Adam", RECIPE, "learning_rate: 1.0e-6 ", "learning_rate: 1.0e-5 ", TRAINED),
    ("B.2 | bf16", RECIPE, "bf16: true ", "bf16: false ", TRAINED),
    ("B.2 | k3", CONFIG, "use_bias_correction_kl: bool = False", "use_bias_correction_kl: bool = True", DEFAULTS),
    (
        "B.2 | the visual encoder",
        TRAINER,
        "        if args.freeze_vision_encoder:\n",
        "        if False:\n",
        f"{OF_TRAINER}the_vision_encoder_can_be_frozen[qwen2_5_vl-full]",
    ),
    (
        "B.2 | gradient checkpointing",
        RECIPE,
        "gradient_checkpointing: true ",
        "gradient_checkpointing: false ",
        TRAINED,
    ),
    (
        "B.2 | samples whose accuracy",
        OBJECTIVE,
        "return accuracy < low, accuracy > high",
        "return accuracy <= low, accuracy >= high",
        f"{OF_OBJECTIVE}groups_too_hard_or_too_easy",
    ),
    (
        "B.2 | samples whose accuracy",
        TRAINER,
        "keep = (graded & ~(too_hard | too_easy).unsqueeze(1)).flatten()",
        "keep = graded.flatten()",
        f"{OF_TRAINER}groups_too_easy_or_too_hard_and_those_without_a_grade_train_nothing",
    ),
    (
        "B.3 | prompt of CoT",
        PROMPTS,
        "- DO NOT EXPLAIN ANYTHING IN <answer>.\n",
        "",
        WORDS,
    ),
    (
        "B.3 | prompt of self-reflection generation",
        PROMPTS,
        "   - Missing assumptions or information\n",
        "",
        WORDS,
    ),
    (
        "B.3 | template of self-reflection SFT",
        PROMPTS,
        "generate two rounds of step-by-step reasoning",
        "generate one round of step-by-step reasoning",
        WORDS,
    ),
    (
        "B.3 | prompt of self-reflection RL",
        TRAINER,
        "            system_prompt=args.reflection_prompt,\n",
        "",
        f"{OF_TRAINER}the_prompt_asks_for_the_format_and_the_rows_stay_as_they_are",
    ),
    (
        "Table 3 | + GRPO",
        TRAINER,
        "own = self.rewards.functions if args.reflection_reward else self.rewards.task_functions",
        "own = self.rewards.functions",
        f"{OF_TRAINER}without_the_reflection_reward_only_the_first_solution_pays",
    ),
    (
        "Table 3 | + GRPO",
        "study/srpo.py",
        '"53.5 against 49.8", "srpo", "grpo-8")',
        '"53.5 against 49.8", "grpo-8", "srpo")',
        "tests/study/test_document.py::test_published_claims_are_judged_by_the_current_rule[srpo_headline]",
    ),
    (
        "B.4 | samples with capital",
        RESPONSE,
        '_TAG = re.compile(r"<(/?)(think|answer|reflection)>", re.IGNORECASE)',
        '_TAG = re.compile(r"<(/?)(think|answer|reflection)>")',
        f"{OF_RESPONSE}case_does_not_matter",
    ),
    (
        "Fig. 4 b, Fig. 7 | response length",
        REWARDS,
        '"length_correct" if first else',
        '"length_correct" if second else',
        CURVES,
    ),
    (
        "4.5, Fig. 5 | self-reflection with PPO",
        REWARDS,
        "texts = [self.opening + text for text in written]\n        responses",
        "texts = [text[1:] for text in written]\n        responses",
        f"{OF_REWARDS}the_parts_work_in_a_plain_grpo_trainer",
    ),
    (
        "Table 1 | which of",
        "trl_mmreason/evaluation/benchmarks/we_math.py",
        '("loose", mastered + some_wrong, all_wrong)',
        '("loose", mastered, all_wrong)',
        "tests/evaluation/test_we_math.py::test_shares_of_all_outcomes",
    ),
    (
        "B.2 | the same, before",
        "trl_mmreason/jobs/difficulty.py",
        "elif share < low:",
        "elif False:",
        "tests/srpo/test_prefilter.py::test_first_answers_decide_and_rows_stay_as_they_are",
    ),
    (
        "Table 3, 4.3 | RL on",
        "trl_mmreason/data/row_loading.py",
        "sorted(np.random.default_rng(seed).permutation(rows)[:max_rows].tolist())",
        "range(max_rows)",
        "tests/data/test_data.py::test_rows_are_sampled_with_a_seed",
    ),
    (
        "Fig. 1, 3, 4.4, B.4 | generated",
        "trl_mmreason/srpo/protocols.py",
        "turns.append(AnsweredTurn(rest, in_answer_tags(response.second_answer)))",
        "turns.append(AnsweredTurn(rest, in_answer_tags(response.first_answer)))",
        "tests/srpo/test_protocols.py::test_a_response_is_cut_behind_its_first_answer_and_graded_twice",
    ),
    (
        "B, B.3 | a prompt template",
        "trl_mmreason/cli/commands/evaluate.py",
        'is_srpo=arguments.protocol == "reflection")',
        "is_srpo=False)",
        "tests/cli/test_evaluate_command.py::test_protocols_of_two_answers[reflection]",
    ),
    (
        "4.5, Fig. 5 | self-reflection with DAPO",
        REWARDS,
        "return self._rewards(batch, lambda score: ACCURACY * bool(score.first_correct))",
        "return self._rewards(batch, lambda score: 2 * ACCURACY * bool(score.first_correct))",
        f"{OF_TRAINER}every_loss_of_trl[dapo]",
    ),
    (
        "3.1.1, 4.1, B.1 | 10K",
        COLD_START,
        "reflected = _ask(asking, REFLECTIONS, teacher, rows, chosen,",
        "reflected = _ask(asking, REFLECTIONS, teacher, rows, chosen[:1],",
        "tests/cli/test_reflect_command.py::test_reflect",
    ),
    (
        "Tables 1, 2 | SRPO-7B",
        "trl_mmreason/srpo/protocols.py",
        "turns = [AnsweredTurn(text[:cut], in_answer_tags(response.first_answer))]",
        "turns = [AnsweredTurn(text[:cut], in_answer_tags(response.second_answer))]",
        "tests/evaluation/test_runner.py::test_reflections_are_read_in_both_parts",
    ),
    (
        "3.1.2 | the policy can",
        "trl_mmreason/srpo/stopping.py",
        "        system_prompt=args.reflection_prompt,\n",
        "",
        "tests/srpo/test_stopping.py::test_a_cold_start_is_measured_on_what_is_sampled_as_in_training",
    ),
    (
        "Fig. 4 a, Fig. 7 | training",
        "trl_mmreason/evaluation/curves.py",
        '{"reward": "reward"}',
        '{"rewards": "reward"}',
        CURVES,
    ),
    (
        "Fig. 4 c, Fig. 7 | ratios",
        "trl_mmreason/evaluation/curves.py",
        '"clip_ratio/high_mean": "ratio above 1 + ε"',
        '"clip_ratio/high_max": "ratio above 1 + ε"',
        CURVES,
    ),
    (
        "B.5 | the lower",
        "trl_mmreason/evaluation/curves.py",
        '"clip_ratio/low_mean": "ratio below 1 − ε"',
        '"clip_ratio/low_min": "ratio below 1 − ε"',
        CURVES,
    ),
    (
        "B.2 | k3",
        "trl_mmreason/functional.py",
        "divergence = torch.exp(difference) - difference - 1",
        "divergence = -difference",
        "tests/training/test_functional.py::test_k3_divergence",
    ),
    (
        "Table 3, 4.3 | w/o Self-Reflection SFT:",
        "examples/srpo.py",
        'if data_args.reflection_dataset is not None:\n        settings["model"]',
        'if True:\n        settings["model"]',
        "tests/project/test_examples.py::test_srpo_without_a_cold_start_and_without_the_reflections_reward",
    ),
    (
        "Table 3, 4.3 | w/o Self-Reflection SFT",
        "study/srpo.py",
        '"53.5 against 51.2", "srpo", "no-reflection-sft")',
        '"53.5 against 51.2", "no-reflection-sft", "srpo")',
        "tests/study/test_document.py::test_published_claims_are_judged_by_the_current_rule[srpo]",
    ),
    (
        "Table 3, 4.3 | w/o Self-Reflection RL:",
        "configs/study/srpo.yaml",
        "sft-only: {reinforce: none}",
        "sft-only: {reinforce: grpo}",
        "tests/study/test_document.py::test_results_are_of_the_settings_that_are_shipped[srpo]",
    ),
    (
        "Table 3, 4.3 | w/o Self-Reflection RL",
        "study/srpo.py",
        'above("srpo", "sft-only", "accuracy")',
        'above("sft-only", "srpo", "accuracy")',
        "tests/study/test_document.py::test_published_claims_are_judged_by_the_current_rule[srpo]",
    ),
]
MUTATIONS = [Mutation(*entry) for entry in TABLE]
