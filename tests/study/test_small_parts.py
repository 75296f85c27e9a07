"""A smoke form of the parts 2, 4 and 5, and STaR of part 1: what their arms begin with, learn from and are paid for."""

import json
import re

import pytest
from datasets import Dataset
from safetensors.torch import load_file
from scripted import Scripted
from small_study import small
from support import SMALL_RUN

from study import adapo, chain_of_step, self_evolution, sophia, srpo
from study.running import BEFORE, Start, StudyArguments, begin, do_arm, outcomes
from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.adapo.recipe import quick_then_worked, two_answers
from trl_mmreason.baselines.sft import PlainSFTConfig, PlainSFTTrainer
from trl_mmreason.generation import SamplingParams
from trl_mmreason.jobs.store import Store
from trl_mmreason.miniature.captions import DESCRIBE, caption
from trl_mmreason.miniature.models import build_model
from trl_mmreason.miniature.solutions import ERRORS, plain, solve
from trl_mmreason.miniature.solutions import tagged as in_tags
from trl_mmreason.miniature.tasks import make_problems
from trl_mmreason.srpo.recipe import QUICK_TAGGED_ANSWERS, TAGGED_ANSWERS, TAGGED_IN_WORDS, drawn_reflections

pytestmark = pytest.mark.full


def test_srpo_in_small(tmp_path):
    """The arms that a policy which was hardly taught can take: it says nothing to reflect on."""
    args = small("srpo", tmp_path)
    args.arms = {name: args.arms[name] for name in ("grpo", "no-reflection-sft")}
    for arm in (BEFORE, "grpo", "no-reflection-sft"):
        do_arm(args, srpo.PART, 0, arm)
    table = outcomes(args)[0]["grpo"]
    assert {"accuracy", "acc_t1", "acc_t2", "tokens"} <= set(table.names)


@pytest.mark.parametrize(
    "own", [{"reinforce": "dpo"}, {"reinforce": "none", "reflect": False}, {"reinforce": "none", "learning_rate": 1.0}]
)
def test_arms_of_srpo_that_cannot_be_meant_are_refused(tmp_path, own):
    start = Start(StudyArguments(arms={"odd": own}), 0, tmp_path, "policy", None, None)
    with pytest.raises(ValueError, match=f"reinforce='{own['reinforce']}', .* expected srpo, grpo, or none"):
        srpo.train(start, "odd", tmp_path / "odd")
    assert not list(tmp_path.iterdir())  # before anything is trained


def test_first_answers_may_be_quick_or_long(tmp_path):
    """The policies of the parts with second answers are taught other answers then; the other parts refuse."""
    quick, slow, long = StudyArguments(first_answers="quick"), StudyArguments(), StudyArguments(first_answers="long")
    assert adapo.PART.taught(slow) == two_answers(EVALUATION_PROMPT)
    assert adapo.PART.taught(quick) == quick_then_worked(EVALUATION_PROMPT)
    assert (srpo.PART.taught(slow), srpo.PART.taught(quick)) == (TAGGED_ANSWERS, QUICK_TAGGED_ANSWERS)
    assert srpo.PART.taught(long) == TAGGED_IN_WORDS
    with pytest.raises(ValueError, match="first_answers='long': the part .* has 'worked', 'quick'"):
        adapo.PART.taught(long)
    for part in (sophia.PART, self_evolution.PART, chain_of_step.PART):
        with pytest.raises(ValueError, match="first_answers='quick': the part .* has 'worked'"):
            part.taught(quick)
    args = small("adapo", tmp_path, first_answers="quick", arms={"adapo": {}})
    for arm in (BEFORE, "adapo"):
        do_arm(args, adapo.PART, 0, arm)
    assert {"acc_t1", "acc_t2"} <= set(outcomes(args)[0]["adapo"].names)


@pytest.mark.parametrize(("prepared", "stream"), [({}, 2), ({"stream": 0}, 0)])
def test_reflections_are_on_other_problems_than_reinforcement_or_on_the_same(tmp_path, monkeypatch, prepared, stream):
    def stop_at(engine, problems, *replies, **settings):
        raise LookupError(problems[0].id)

    monkeypatch.setattr(srpo, "TransformersEngine", lambda *policy, **settings: None)
    monkeypatch.setattr(srpo, "drawn_reflections", stop_at)
    args = small("srpo", tmp_path)
    args.prepared |= prepared
    (tmp_path / "reflections").mkdir()
    start = Start(args, 30, tmp_path, "policy", None, None)
    with pytest.raises(LookupError, match=f"^{start.problems(1, stream=stream)[0].id}$"):
        srpo.reflecting_policy(start)


@pytest.mark.parametrize(("right_share", "right", "wrong"), [(0.25, 2, 6), (0.5, 6, 6), (0.75, 6, 2)])
def test_reflections_are_on_as_many_right_answers_as_asked_for(tmp_path, right_share, right, wrong):
    """Twelve problems, of which the policy solves every second one."""
    problems = make_problems(["adding"], 12)
    solved = {problem.image.tobytes(): problem.answer for problem in problems[::2]}

    def reply(request, times):
        return f"<think>It is.</think> <answer>{solved.get(request.images[0].tobytes(), 99)}</answer>"

    settings = {"max_new_tokens": 32, "right_share": right_share, "seed": 0}
    rows = drawn_reflections(Scripted(reply), problems, tmp_path / "r.sqlite", **settings)
    first = [re.search("<answer>(.*?)</answer>", row["completion"])[1] for row in rows]
    assert (len(first) - first.count("99"), first.count("99")) == (right, wrong)


def test_the_last_answer_of_a_response_counts():
    texts = {
        "fixed": "<think>a</think> <answer>8</answer> <reflection>no</reflection> <think>b</think> <answer>7</answer>",
        "plain": "<think>a</think> <answer>7</answer>",
        "prose": "It is 7.",
    }
    units = [({"id": id_, "prompt": [{"role": "user", "content": id_}]}, 0) for id_ in texts]
    engine = Scripted(lambda request, times: texts[request.messages[0]["content"]])
    found = srpo.FirstAndLast().answer(units, engine, SamplingParams(64, 0.0), 0)
    assert [turn.graded for turn in found[0].turns] == ["<answer>8</answer>", texts["fixed"]]
    assert [turn.graded for turn in found[1].turns] == ["<answer>7</answer>", texts["plain"]]
    assert [turn.graded for turn in found[2].turns] == ["", texts["prose"]]


def test_self_evolution_in_small(tmp_path):
    args = small("self_evolution", tmp_path, eval_rows=4)
    args.rl |= {"judge_max_tokens": 8, "max_completion_length": 8}
    args.arms = {name: args.arms[name] for name in ("ours", "majority", "labels")}
    for arm in (BEFORE, *args.arms):
        do_arm(args, self_evolution.PART, 0, arm)
    table = outcomes(args)[0]["ours"]
    assert set(self_evolution.METRICS) <= set(table.names)
    assert len(table.numerator) == 4
    logged = {"ours": "sc_winner_accuracy", "labels": "rewards/accuracy_reward/mean"}
    drawn = [{names} if isinstance(names, str) else set(names) for names in self_evolution.PANELS]
    for arm, name in logged.items():
        (first, *_) = json.loads((tmp_path / "seed-0" / arm / "model/trainer_state.json").read_text())["log_history"]
        assert name in first
        assert all(names & first.keys() for names in drawn)
    assert {"accuracy", "entropy", "completions/mean_length"} <= set.union(*drawn)  # Fig. 3 and 4


def remember(folder, rows, **made):
    """A policy that knows a few conversations by heart: messages, image → what it says."""
    model, processor = build_model("qwen2_5_vl", "test", **made)
    model.save_pretrained(folder / "base")
    processor.save_pretrained(folder / "base")
    learnt = [{"prompt": list(messages), "completion": said, "images": [image]} for messages, image, said in rows]
    settings = {name: SMALL_RUN[name] for name in ("use_cpu", "bf16", "gradient_checkpointing", "report_to")}
    args = PlainSFTConfig(
        str(folder / "run"), num_train_epochs=100, learning_rate=2e-3, per_device_train_batch_size=12,
        save_strategy="no", disable_tqdm=True, **settings,
    )  # fmt: skip
    trainer = PlainSFTTrainer(str(folder / "base"), args=args, train_dataset=Dataset.from_list(learnt))
    trainer.train()
    trainer.save_model(str(folder / "cold_start"))


def user(text):
    return {"role": "user", "content": text}


def test_star_continues_from_its_first_iteration(tmp_path):
    """The policy always errs, and corrects itself when told that there might be an error."""
    rows = []
    for problem in make_problems(["adding"], 6):
        wrong, right = plain(solve(problem, error=ERRORS[0])), plain(solve(problem))
        said = [*problem.prompt, {"role": "assistant", "content": wrong}, user(EVALUATION_PROMPT)]
        again = [*said, {"role": "assistant", "content": right}, user(EVALUATION_PROMPT)]
        rows += [(messages, problem.image, text) for messages, text in ((problem.prompt, wrong), (said, right))]
        rows.append((again, problem.image, right))
    remember(tmp_path / "seed-0", rows)
    args = small("adapo", tmp_path, train_rows=6, arms={"star": {"n": 1, "max_steps": 2, "learning_rate": 1e-6}})
    do_arm(args, adapo.PART, 0, "star")
    folder = tmp_path / "seed-0" / "star"
    with Store(folder / "revisions.sqlite") as store:
        drawn = [stage for stage in store.stages().values() if "engine" in stage]
    assert {stage["sampling_params"]["max_new_tokens"] for stage in drawn} == {args.rl["max_completion_length"]}
    assert {stage["engine"]["model"] for stage in drawn} == {
        str(tmp_path / "seed-0" / "cold_start"), str(folder / "iteration-1" / "model")
    }  # fmt: skip
    first, second = ((folder / name / "model" / "model.safetensors") for name in ("iteration-1", "."))
    assert first.read_bytes() != second.read_bytes()


def test_the_arm_without_filters_learns_from_all_questions(tmp_path):
    """Of three questions one is always right, one always wrong, and one right at the second look: that one is kept."""
    problems, rows = make_problems(["adding"], 3), []
    for problem, errors in zip(problems, ([None, None], [ERRORS[0], None], [ERRORS[0]] * 2), strict=True):
        first, second = (plain(solve(problem, error=error)) for error in errors)  # 1→1, 0→1, 0→0
        again = [*problem.prompt, {"role": "assistant", "content": first}, user(EVALUATION_PROMPT)]
        rows += [(problem.prompt, problem.image, first), (again, problem.image, second)]
    remember(tmp_path / "seed-0", rows)
    args = small("adapo_filters", tmp_path, train_rows=3, eval_rows=2, tasks={"adding": 1})
    assert args.prepared == {"prefilter": 8}
    args.prepared["prefilter"] = 2
    args.rl |= {"temperature": 0.1, "max_steps": 1}  # it says what it knows by heart
    logged = {}
    for arm, questions in (("adapo", 1), ("no-offline-filter", 3), ("no-filters", 3)):
        args.arms[arm]["per_device_train_batch_size"] = 4 * questions
        do_arm(args, adapo.PART, 0, arm)
        state = json.loads((tmp_path / "seed-0" / arm / "model" / "trainer_state.json").read_text())
        logged[arm] = state["log_history"][0]
    with Store(tmp_path / "seed-0" / "prefilter.sqlite") as store:
        assert len(list(store.records("adapo-prefilter"))) == 3 * 2  # once for all arms
    assert adapo.prefiltered(begin(args, adapo.PART, 0))["id"] == [problems[1].id]
    accuracies = {arm: [entry["acc_t1"], entry["acc_t2"]] for arm, entry in logged.items()}
    of_all = [pytest.approx(1 / 3), pytest.approx(2 / 3)]
    assert accuracies == {"adapo": [0.0, 1.0], "no-offline-filter": of_all, "no-filters": of_all}
    # every group earns the same throughout: A.2 drops it online, and the arm without filters does not
    assert {arm: entry["dropped_zero_advantage"] for arm, entry in logged.items()} == {
        "adapo": 1.0, "no-offline-filter": 1.0, "no-filters": 0.0
    }  # fmt: skip


def test_an_offline_filter_that_is_not_prepared_is_refused(tmp_path):
    args = StudyArguments(arms={"adapo": {"prefiltered": True}}, prepared={"filter": 8})
    start = Start(args, 0, tmp_path, "policy", None, None)
    with pytest.raises(ValueError, match=r"prepared has {'filter': 8}, expected prefilter: the trajectories"):
        adapo.train(start, "adapo", tmp_path / "adapo")


def test_srpo_with_reflections_in_small(tmp_path, caplog):
    """The policy solves every second of the problems that it reflects on, and learns too little of reflections."""
    problems = make_problems(["adding"], 6, seed=2)
    errors = [None, ERRORS[0]] * 3
    said = [in_tags(solve(each, error=error)) for each, error in zip(problems, errors, strict=True)]
    remember(tmp_path / "seed-0", [(each.prompt, each.image, text) for each, text in zip(problems, said, strict=True)])
    args = small("srpo", tmp_path, train_rows=4, eval_rows=4, tasks={"adding": 1})
    args.rl |= {
        "learning_rate": 1e-4,
        "filter_min_accuracy": 0.0,
        "filter_max_accuracy": 1.0,
    }  # a policy of so few steps is right or wrong
    args.prepared |= {"problems": 6, "right_share": 0.5, "complete_share": 0.95, "min_delta": 0.1}
    args.arms = {name: args.arms[name] for name in ("srpo", "no-reflection-reward", "answer-reward", "sft-only")}
    args.arms["answer-reward"]["learning_rate"] = 0.0  # which nothing teaches
    for arm in args.arms:
        do_arm(args, srpo.PART, 0, arm)
    assert "after 2 steps, expected 95% and +10 or more" in caplog.text
    folder = tmp_path / "seed-0"
    taught = folder / "reflections" / "model"
    assert (folder / "sft-only" / "model").resolve() == taught
    paid = {}
    for arm in ("srpo", "no-reflection-reward", "answer-reward"):
        logged = json.loads((folder / arm / "model" / "trainer_state.json").read_text())["log_history"]
        paid[arm] = {name.split("/")[1] for name in logged[0] if re.fullmatch("rewards/.*/mean", name)}
    assert paid["answer-reward"] == {"accuracy_reward"}
    assert paid["no-reflection-reward"] < paid["srpo"]
    models = [(path / "model.safetensors").read_bytes() for path in (folder / "srpo" / "model", taught)]
    assert models[0] != models[1]


def weight_of(folder, ending):
    weights = load_file(folder / "model.safetensors")
    return next(weight for name, weight in weights.items() if name.endswith(ending))


def recorded_rows(trainer_class, rows):
    """The trainer's constructor, which puts what it trains on into `rows`."""

    def make(policy, *, args, train_dataset):
        rows.append(list(train_dataset.remove_columns("images")))
        return trainer_class(policy, args=args, train_dataset=train_dataset)

    return make


def test_sophia_in_small(tmp_path, monkeypatch):
    monkeypatch.setattr(sophia, "_DIFFICULTY", {"n": 4, "low": 0.0, "high": 1.0})  # GRPO needs rows, right or wrong
    args = small("sophia", tmp_path, train_rows=6, eval_rows=4, tasks={"adding": 1})
    args.rl |= {"num_generations": 4, "max_completion_length": 8, "trainable_parts": ["language"]}
    arms = {name: args.arms[name] for name in ("sophia", "quarter-data", "sophia-grpo")}
    args.arms = {**arms, "grpo": {"grpo": True}, "sft": {"solutions": True, "sequence_reduction": "mean"}}
    rows = []
    problems = make_problems(["adding"], 6, seed=2)  # these very images, captions of four, and their solutions
    rows += [([user(DESCRIBE)], problem.image, caption(problem)) for problem in problems[:4]]
    rows += [(problem.prompt, problem.image, plain(solve(problem))) for problem in problems]
    remember(tmp_path / "seed-0", rows, in_steps=True)
    learnt_from = []
    monkeypatch.setattr(sophia, "OffPolicyRewardTrainer", recorded_rows(sophia.OffPolicyRewardTrainer, learnt_from))
    for arm in (BEFORE, *args.arms):
        do_arm(args, sophia.PART, 0, arm)
    whole, quarter, solved = learnt_from  # Table 8: a quarter of the rows that were selected, not of the six problems
    assert 4 <= len(whole) < 6  # a caption of the other two may be right by chance
    assert len(quarter) == 1
    assert {row["id"] for row in quarter} < {row["id"] for row in whole}
    assert [row["id"] for row in sorted(solved, key=lambda row: row["id"])] == [problem.id for problem in problems]
    for arm in ("sophia", "sft"):  # what is selected and what is solved by the rule is right, whoever grades it
        assert json.loads((tmp_path / "seed-0" / arm / "right.json").read_text()) == {"adding": 1.0}
    assert set(sophia.METRICS) <= set(outcomes(args)[0]["sophia-grpo"].names)
    seed = tmp_path / "seed-0"
    eye = "visual.patch_embed.proj.weight"  # which SOPHIA trains, and GRPO does not here
    for arm, began in (("sophia-grpo", "sophia/model"), ("grpo", "cold_start")):
        first, last = (weight_of(seed / path, eye) for path in (began, f"{arm}/model"))
        assert first.equal(last)
        with Store(seed / arm / "difficulty.sqlite") as store:
            asked = store.stages()["difficulty"]
        assert asked["engine"]["model"] == str(seed / "cold_start")  # whose questions those of GRPO are
