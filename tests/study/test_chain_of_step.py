"""A smoke form of the study's part on Chain-of-Step, and what it makes of scores, arms and figures."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from support import maker

from study import chain_of_step
from study.__main__ import history, main
from study.claims import claims_about
from study.figures import Figure, draw_figures, over_seeds
from study.running import BEFORE, Start, StudyArguments, do_arm, outcomes
from trl_mmreason.chain_of_step.config import ChainOfStepSFTConfig
from trl_mmreason.chain_of_step.miniature import drawn_chains, stop_at
from trl_mmreason.chain_of_step.sft import ChainOfStepSFTTrainer
from trl_mmreason.evaluation.files import read_evaluation
from trl_mmreason.evaluation.question_table import QuestionTable
from trl_mmreason.evaluation.runner import Samples
from trl_mmreason.generation.engine import Failure
from trl_mmreason.jobs.store import SettingsChanged
from trl_mmreason.miniature.tasks import make_problems, problems_dataset
from trl_mmreason.scripts.single_stage import train_once

pytestmark = pytest.mark.full

CONFIG = Path(__file__).parents[2] / "configs/study/chain_of_step.yaml"
SEARCHED = {"temperature": 1.0, "top_p": 0.95}
ARMS = {
    "dpo": {},
    "grpo-outcome": {"method": "grpo", "reward": "outcome"},
    "best-of-2": {"of": "before", "scored": True, "evaluation": {"n": 2, **SEARCHED}},
    "beam-2": {"of": "before", "beam": 2, "evaluation": SEARCHED},
    "dpo-1": {"of": "dpo", "round": 1},
    "w-0": {"of": "best-of-2", "step_weight": 0.0},
}


def small(folder, **settings):
    """The shipped configuration, but for all that takes time; the policy learns its few chains by heart."""
    given = yaml.safe_load(CONFIG.read_text())
    given |= {"size": "test", "tasks": {"adding": 1}, "seeds": [0], "arms": ARMS, "output_dir": str(folder)}
    given |= {"decide": {}, "cold_start_accuracy": 0.0, "cold_start_rows": 320, "train_rows": 4, "eval_rows": 4}
    given["common"] |= {"use_cpu": True, "logging_steps": 1}
    given["evaluation"] |= {"max_new_tokens": 110}
    prepared = given["prepared"]
    prepared |= {"chains": 6, "sft_accuracy": None, "base_accuracy": 0.0}
    prepared["sft"] |= {"num_train_epochs": 120, "learning_rate": 3e-3, "per_device_train_batch_size": 6}
    prepared["labels"] |= {"problems": 4, "held_out": 3, "paths": 2, "monte_carlo": 2, "continuations": 2}
    prepared["prm"] |= {"max_steps": 2, "per_device_train_batch_size": 4}
    given["dpo"] |= {"rounds": 2, "num_paths": 4, "pair_threshold": 0.0, "per_device_train_batch_size": 4}
    given["rl"] |= {"learning_rate": 0.0, "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8}
    return StudyArguments(**{**given, **settings})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All arms, in this process."""
    args = small(tmp_path_factory.mktemp("study"))
    for arm in (BEFORE, *args.arms):
        do_arm(args, chain_of_step.PART, 0, arm)
    return args


def test_a_policy_that_does_not_learn_to_write_chains_is_refused(done, tmp_path):
    prepared = {**done.prepared, "sft_accuracy": 1.0, "sft": {**done.prepared["sft"], "max_steps": 10}}
    args = small(tmp_path, prepared=prepared)
    start = Start(args, 0, tmp_path, str(folder_of(done) / "cold_start"), None, None)
    with pytest.raises(RuntimeError, match=r"accuracy 0\.\d\d after 10 steps, expected 1\.00. Give more chains"):
        chain_of_step.prepare(start)
    assert not (tmp_path / "sft/model").exists()


def test_the_policy_stops_where_its_chains_are_right_often_enough(done, tmp_path):
    settings = {**done.prepared["sft"], **done.common, "num_train_epochs": 30}
    chains = drawn_chains(make_problems(["adding"], 6), tmp_path / "steps.sqlite")
    make = maker(ChainOfStepSFTTrainer, ChainOfStepSFTConfig, **settings)
    questions = problems_dataset(make_problems(["adding"], 2, split="new_pictures", seed=5))
    for target in (0.0, 1.0):  # the second is loaded, and not measured again
        trainer = make(str(folder_of(done) / "cold_start"), tmp_path, chains)
        trainer.add_callback(stop_at(trainer, questions, target, max_new_tokens=4))
        train_once(trainer, tmp_path / "model")
        assert trainer.state.global_step == 10  # of 30


def folder_of(args):
    return Path(args.output_dir) / "seed-0"


def evaluation_of(args, arm):
    return read_evaluation(folder_of(args) / arm / "evaluation")


def test_every_arm_is_measured_as_it_should_be(done):
    tables = outcomes(done)[0]
    assert set(tables) == {BEFORE, *ARMS}
    assert {len(table.numerator) for table in tables.values()} == {4}
    assert {"accuracy", "tokens", "truncated"} <= set(tables["dpo"].names)
    for arm in ("best-of-2", "w-0"):
        assert {"pass_at_2", "self_consistency_at_2", "best_of_2"} <= set(tables[arm].names)
    protocols = {arm: evaluation_of(done, arm).about["settings"]["protocol"]["name"] for arm in tables}
    assert protocols == {
        "before": "chain-of-step",
        "dpo": "chain-of-step",
        "grpo-outcome": "chain-of-step",
        "dpo-1": "chain-of-step",
        "best-of-2": "best-of-n",
        "beam-2": "step-beam",
        "w-0": "best-of-n",
    }


def test_the_command_shows_what_is_about_the_arms_that_are_there(done, monkeypatch):
    """Every arm is done, so that no process is begun; of the shipped figures each needs an arm that is not there."""
    compared = Figure("Length", "round", "tokens", {"ours": [(0, BEFORE, "tokens"), (1, "dpo-1", "tokens")]})
    monkeypatch.setattr(chain_of_step, "FIGURES", (*chain_of_step.FIGURES, compared))
    main(done)
    folder = Path(done.output_dir)
    said = {claim["claim"] for claim in json.loads((folder / "claims.json").read_text())["claims"]}
    assert said == {claim.text for claim in claims_about(chain_of_step.CLAIMS, {BEFORE, *ARMS})}
    assert 0 < len(said) < len(chain_of_step.CLAIMS)
    arms, by_seed = (folder / "table.txt").read_text().split("\n\n")
    assert arms.count("\n") == len({BEFORE, *ARMS})
    assert "reward model, answer accuracy" in by_seed
    assert "dpo, pairs of round 1, chosen answers right" in by_seed
    assert (folder / "curves.png").stat().st_size > 10_000
    with Image.open(folder / "figures.png") as image:
        assert image.size == (round(4.6 * 120), round(3.8 * 120))  # one of four


def test_what_arms_share_is_made_once(done):
    folder = folder_of(done)
    metrics = json.loads((folder / "prm" / "metrics.json").read_text())
    assert {f"eval_{name}_step_accuracy" for name in ("seen", "unseen")} <= set(metrics)
    kept = [*folder.rglob("model.safetensors"), *folder.glob("*.parquet")]
    before = {path: path.stat().st_mtime_ns for path in kept}
    do_arm(done, chain_of_step.PART, 0, "dpo")
    assert {path: path.stat().st_mtime_ns for path in kept} == before
    changed = small(done.output_dir)
    changed.prepared["base_accuracy"] = 0.5
    with pytest.raises(SettingsChanged, match=r"prepared\.base_accuracy: 0\.0 → 0\.5"):
        do_arm(changed, chain_of_step.PART, 0, BEFORE)


def test_arms_made_of_others_have_their_policies(done):
    folder = folder_of(done)
    linked = {arm: (folder / arm / "model").resolve() for arm in ARMS if (folder / arm / "model").is_symlink()}
    assert linked == {
        "best-of-2": folder.resolve() / "sft/model",
        "beam-2": folder.resolve() / "sft/model",
        "w-0": folder.resolve() / "sft/model",
        "dpo-1": folder.resolve() / "dpo/round-1/policy",
    }
    logged = {arm: {name for entry in history(folder / arm) for name in entry} for arm in ARMS}
    assert not any(logged[arm] for arm in linked)
    assert "rewards/margins" in logged["dpo"]
    assert {"reward", "accuracy"} <= logged["grpo-outcome"]
    assert set(chain_of_step.PANELS) <= logged["dpo"] | logged["grpo-outcome"]


def test_another_weight_samples_nothing_again(done):
    sampled, weighed = (evaluation_of(done, arm) for arm in ("best-of-2", "w-0"))
    assert not list((folder_of(done) / "w-0").glob("*answers*"))
    assert weighed.about["settings"]["protocol"]["step_weight"] == 0.0
    assert sampled.about["settings"]["protocol"]["step_weight"] == 0.2
    texts = [[[one["turns"][0]["text"] for one in row] for row in each.samples.samples] for each in (sampled, weighed)]
    assert texts[0] == texts[1]
    again = chain_of_step.weighed(weighed.samples, 0.2)
    assert scores(again) == scores(sampled.samples) != scores(weighed.samples)


def scores(samples):
    return [[one["score"] for one in row] for row in samples.samples]


def test_the_weight_of_the_steps():
    """Steps of mean 0.8 and an answer of 0.6: 0.2 * 0.8 + 0.8 * 0.6 = 0.64. An answer that is missing counts 0."""
    whole = {"step_scores": [0.9, 0.7, 0.8], "answer_score": 0.6, "score": 0.1}
    cut = {"step_scores": [0.9, 0.7], "score": 0.1}
    empty = {"step_scores": [], "score": 0.1}
    samples = Samples([], 4, 1, [[whole, cut, empty, Failure("gone")]])
    expected = {0.0: [0.6, 0.0, 0.0], 0.2: [0.64, 0.16, 0.0], 1.0: [0.8, 0.8, 0.0]}
    for weight, of_each in expected.items():
        (found,) = chain_of_step.weighed(samples, weight).samples
        assert [one["score"] for one in found[:3]] == pytest.approx(of_each)
        assert found[3] == Failure("gone")
    assert whole["score"] == 0.1


def start_in(folder, arms):
    return Start(small(folder, arms=arms), 0, folder, str(folder / "policy"), None, None)


def test_rounds_that_were_not_made(tmp_path):
    """DPO ended before its second round, as there were no more pairs: its last policy is the one after any more."""
    start = start_in(tmp_path, {"dpo": {}, "dpo-2": {"of": "dpo", "round": 2}})
    (tmp_path / "dpo/round-1/policy").mkdir(parents=True)
    chain_of_step.train(start, "dpo-2", tmp_path / "dpo-2")
    assert (tmp_path / "dpo-2/model").resolve() == (tmp_path / "dpo/round-1/policy").resolve()


def test_arms_that_cannot_be_meant_are_refused(tmp_path):
    arms = {
        "ppo": {"method": "ppo"},
        "judge": {"reward": "judge"},
        "nothing": {"of": "before"},
        "both": {"of": "before", "beam": 4, "scored": True},
        "other": {"of": "before", "learning_rate": 1.0},
        "unscored": {"of": "before", "step_weight": 0.4},
        "dpo": {},
        "search": {"of": "dpo", "beam": 2},
        "no-rounds": {"of": "search", "round": 1},
        "round-0": {"of": "dpo", "round": 0},
        "round-3": {"of": "dpo", "round": 3},
        "scored": {"of": "before", "scored": True},
        "again": {"of": "scored", "step_weight": 0.4, "evaluation": {"n": 2}},
    }
    start = start_in(tmp_path, arms)
    for arm, said in {
        "ppo": "method='ppo' and reward='prm', expected dpo or grpo",
        "judge": "method='dpo' and reward='judge', expected dpo or grpo",
        "nothing": "made of 'before' and has {}, expected one setting",
        "both": "'beam': 4, 'scored': True}, expected one setting",
        "other": "'learning_rate': 1.0}, expected one setting",
        "unscored": "has {'step_weight': 0.4}, expected .* step_weight of an arm that is scored",
        "no-rounds": "made of 'search' and has {'round': 1}, expected one setting: round of an arm by DPO",
        "round-0": "is round 0 of 'dpo', expected 1 to 2",
        "round-3": "is round 3 of 'dpo', expected 1 to 2",
        "again": "has {'step_weight': 0.4}, expected .* with that one's evaluation",
    }.items():
        with pytest.raises(ValueError, match=said):
            chain_of_step.train(start, arm, tmp_path / arm)


def table(name, *values):
    """What questions add to one metric."""
    over = np.array(values, dtype=float).reshape(-1, 1)
    return QuestionTable((name,), over, np.ones_like(over))


def test_figures_show_every_seed(tmp_path):
    """Accuracies of 1 and 1 of 2 questions, then 2 and 0 of 2; lengths of 90 and 100 tokens, then 110 and 120."""
    outcomes = {
        0: {"a": table("accuracy", 1, 0), "b": table("accuracy", 1, 1), "c": table("tokens", 90, 100)},
        1: {"a": table("accuracy", 0, 1), "b": table("accuracy", 0, 0), "c": table("tokens", 110, 120)},
    }
    shares, lengths = [(0, "a", "accuracy"), (1, "b", "accuracy")], [(0, "c", "tokens")]
    assert over_seeds(outcomes, shares).tolist() == [[50, 100], [50, 0]]
    assert over_seeds(outcomes, lengths).tolist() == [[95], [115]]
    right = Figure("Right", "N", "percent", {"ours": shares, "theirs": shares[:1]})
    figures = [right, Figure("L", "round", "", {"": lengths})]
    draw_figures(outcomes, figures, tmp_path / "figures.png")
    with Image.open(tmp_path / "figures.png") as image:
        assert image.size == (round(2 * 4.6 * 120), round(3.8 * 120))
        assert len(image.convert("RGB").getcolors(1 << 20)) > 100  # lines, and the bands between seeds


def test_the_shipped_figures_show_arms_and_weights_of_the_configuration():
    arms = yaml.safe_load(CONFIG.read_text())["arms"]
    assert set().union(*(figure.arms for figure in chain_of_step.FIGURES)) <= {BEFORE, *arms}
    weights, samples, _ = chain_of_step.FIGURES
    shown = [(x, arms[arm].get("step_weight", 0.2)) for x, arm, _ in weights.curves["best of 16"]]
    assert sorted(shown) == [pytest.approx((x, x)) for x in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)]
    beams = [(x, arms[arm]["beam"]) for x, arm, _ in samples.curves["step beam"][1:]]
    assert beams == [(4, 4), (16, 16)]
