"""IterativeDPOTrainer: the reference, the rounds, killed and resumed, every family, LoRA, where scores come from."""

import gc
import json
import weakref
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from processes import one_and_two
from solution_chains import chain_of_steps
from support import PATHS_RUN, assert_weights, changed_weights, drawn_rows, full_but, load, losses_of, maker, weights_of
from transformers import TrainerCallback

from trl_mmreason import IterativeDPOConfig, IterativeDPOTrainer
from trl_mmreason.chain_of_step.chains import read_path
from trl_mmreason.chain_of_step.process_reward import Scores
from trl_mmreason.compat.model_parts import parts_of
from trl_mmreason.generation.engine import Sample
from trl_mmreason.generation.vllm_engine import VLLMProcess
from trl_mmreason.grading import JudgeGrader
from trl_mmreason.jobs.store import SettingsChanged, Store
from trl_mmreason.miniature.solutions import solve
from trl_mmreason.miniature.tasks import make_problems

RUN = {**PATHS_RUN, "per_device_train_batch_size": 2, "rounds": 2, "num_paths": 3, "warmup_steps": 0}
RUN |= {"num_train_epochs": 1, "max_steps": -1}
make = maker(IterativeDPOTrainer, IterativeDPOConfig, **RUN)


class LengthReward:
    """Scores a path by its text alone, so that pairs exist whatever a random policy writes."""

    settings = {"kind": "length"}

    def score(self, rows):
        return [Scores(torch.tensor([len(row["completion"]) % 10 / 10]), 0.5) for row in rows]


class Writers:
    """A sampler: the engine writes right and wrong chains in turn, and remembers which policies it was asked for."""

    settings = {"kind": "writers"}

    def __init__(self):
        self.policies, self.calls = [], 0

    def __call__(self, folder):
        self.policies.append(folder)
        return self

    def sample(self, requests, sampling_params):
        problem = make_problems(["adding"], 1)[0]
        texts = [chain_of_steps(solve(problem)), chain_of_steps(solve(problem, error="slip")), "no chain"]
        results = []
        for _ in requests:
            results.append([Sample(texts[self.calls % 3], "stop", token_ids=[1])])
            self.calls += 1
        return results


def questions(n=4):
    """Adding, one with an image, one with two, one with none, in turn, all with the first problem's answer."""
    answer = make_problems(["adding"], 1)[0].answer
    return Dataset.from_list([{**row, "answer": answer} for row in drawn_rows(n)])


def trainer_for(model, folder, reward=None, *, rows=None, trainer_kwargs=None, **settings):
    own = {"process_reward_model": reward, "sampler": Writers(), **(trainer_kwargs or {})}
    return make(model, folder, questions() if rows is None else rows, trainer_kwargs=own, **settings)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_reference_is_the_sft_model_in_all_rounds_and_the_policy_moves_on(family, bases, tmp_path):
    base, _ = load(bases(family))
    trainer = trainer_for(bases(family), tmp_path)
    trainer.train()
    assert same(trainer.ref_model, base)
    place = parts_of(trainer.model)
    moved = {place[name] for name in changed_weights(trainer.model, weights_of(base))}
    assert moved == {"vision", "projector", "language"}  # Table 7
    first, _ = load(str(tmp_path / "round-1" / "policy"))
    second, _ = load(str(tmp_path / "round-2" / "policy"))
    assert same(trainer.model, second)
    assert not same(base, first)
    assert not same(first, second)
    assert trainer.sampler.policies == [bases(family), str(tmp_path / "round-1" / "policy")]


class ClosingWriters(Writers, VLLMProcess):
    """Writers in the place of a vLLM, which know whether it was closed."""

    def __init__(self):
        super().__init__()
        self.closed = True

    def sample(self, requests, sampling_params):
        self.closed = False
        return super().sample(requests, sampling_params)

    def close(self):
        self.closed = True


def test_a_vllm_that_sampled_is_closed_before_the_round_trains(bases, tmp_path):
    writers, at_steps = ClosingWriters(), []

    class Noting(TrainerCallback):
        def on_step_begin(self, *_, **__):
            at_steps.append(writers.closed)

    trainer = trainer_for(
        bases("qwen2_5_vl"), tmp_path, trainer_kwargs={"sampler": writers, "callbacks": [Noting()]}, rounds=1
    )
    trainer.train()
    assert writers.calls
    assert at_steps
    assert all(at_steps)


@pytest.mark.full
def test_the_second_round_begins_with_the_first_one_s_policy_against_the_same_reference(bases, tmp_path):
    """Its first loss is not log 2, which it would be for a policy that equals its reference; the first round's is."""
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, learning_rate=1e-2)
    trainer.train()
    losses = {}
    for entry in trainer.state.log_history:
        if "loss" in entry:
            losses.setdefault(entry["round"], entry["loss"])
    assert losses[1] == pytest.approx(0.6931, abs=1e-4)
    assert abs(losses[2] - 0.6931) > 1e-3
    steps = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    assert steps == list(range(1, trainer.state.global_step + 1))


def test_outcome_pairs_are_right_against_wrong_answers(bases, tmp_path):
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, rounds=1)
    trainer.train()
    pairs = Dataset.from_parquet(str(tmp_path / "round-1" / "pairs.parquet"))
    answer = trainer.questions["answer"][0]
    assert len(pairs) == 4
    for chosen, rejected in zip(pairs["chosen"], pairs["rejected"], strict=True):
        assert read_path(chosen[0]["content"]).answer == answer
        assert read_path(rejected[0]["content"]).answer != answer
    assert set(pairs["chosen_score"]) == {1.0}
    assert trainer.rounds == [{"round": 0, "train": {**trainer.rounds[0]["train"], "accuracy": 1 / 3, "pairs": 4}}]


def test_an_answer_that_a_judge_left_open_is_rejected_in_no_pair(bases, tmp_path):
    """The judge is asked about the wrong chains, whose answer may be right; "no chain" has none to ask about."""
    judge = JudgeGrader(lambda conversations: ["I cannot say."] * len(conversations))
    trainer_for(bases("qwen2_5_vl"), tmp_path, trainer_kwargs={"grader": judge}, pairing="all", rounds=1).train()
    pairs = Dataset.from_parquet(str(tmp_path / "round-1" / "pairs.parquet"))
    assert [message["content"] for (message,) in pairs["rejected"]] == ["no chain"] * 4


def test_a_question_whose_gold_answer_cannot_be_used_gives_no_pair(bases, tmp_path):
    rows = questions().map(lambda row, i: {"answer": row["answer"] if i else ""}, with_indices=True)
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, rows=rows, rounds=1)
    trainer.train()
    pairs = Dataset.from_parquet(str(tmp_path / "round-1" / "pairs.parquet"))
    assert len(pairs) == 3
    assert rows["id"][0] not in pairs["id"]


def test_the_policy_itself_samples_and_a_process_reward_model_scores(bases, tmp_path):
    """No part is scripted; a random policy writes no chain, so that every path scores 0 and there is no pair."""
    settings = {"trainer_kwargs": {"sampler": None}, "max_completion_length": 4}
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, bases("qwen2_5_vl"), **settings)
    with pytest.raises(ValueError, match="no two scores differ by more than 0.2; their mean is 0.0"):
        trainer.train()


def saving(model, folder, **kwargs):
    return trainer_for(model, folder, LengthReward(), save_strategy="steps", save_steps=1, **kwargs)


@pytest.fixture(scope="module")
def whole(bases, tmp_path_factory):
    """A run that nothing interrupted."""
    trainer = saving(bases("qwen2_5_vl"), tmp_path_factory.mktemp("whole"))
    trainer.train()
    return trainer


@pytest.mark.parametrize("stage", full_but("training", ["sampling", "scoring", "training", "saving"]))
def test_killed_in_any_stage_it_resumes_there(whole, bases, tmp_path, stage):
    killed = saving(bases("qwen2_5_vl"), tmp_path / "killed")
    interrupt(killed, stage)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    assert (tmp_path / "killed" / "round-1" / "policy").exists()
    assert not (tmp_path / "killed" / "round-2" / "policy").exists()

    writers = Writers()
    writers.calls = 6 if stage == "sampling" else 0
    resumed = saving(bases("qwen2_5_vl"), tmp_path / "killed", trainer_kwargs={"sampler": writers})
    resumed.train()
    assert writers.policies == [str(tmp_path / "killed" / "round-1" / "policy")]
    if stage != "sampling":
        assert writers.calls == 0
    assert_weights(resumed.model, whole.model, atol=1e-6)
    assert resumed.rounds == whole.rounds
    assert losses_of(whole) == pytest.approx(losses_of(resumed))


def interrupt(trainer, stage):
    """Stop the trainer in a stage of its second round."""
    if stage == "sampling":
        trainer.args.sampling_batch_size = 6
        raise_at(3, trainer.sampler, "sample")
    elif stage == "scoring":
        raise_at(1, trainer.process_reward, "score")
    elif stage == "training":
        raise_at(3, trainer, "training_step")  # two steps a round
    else:
        save = trainer.save_model

        def save_first(folder, **kwargs):
            if "round-2/policy" in str(folder):
                raise KeyboardInterrupt
            save(folder, **kwargs)

        trainer.save_model = save_first


def raise_at(number, owner, name):
    """Let the call of a method with this number raise KeyboardInterrupt; the first is 0."""
    method, numbers = getattr(owner, name), iter(range(100))

    def call(*args, **kwargs):
        if next(numbers) == number:
            raise KeyboardInterrupt
        return method(*args, **kwargs)

    setattr(owner, name, call)


@pytest.mark.full
def test_a_finished_run_does_nothing_and_more_rounds_go_on(bases, tmp_path):
    first = trainer_for(bases("qwen2_5_vl"), tmp_path, rounds=1)
    first.train()
    again = trainer_for(bases("qwen2_5_vl"), tmp_path, rounds=1)
    again.train()
    assert again.sampler.calls == 0
    assert again.rounds == first.rounds != []
    assert same(again.model, load(str(tmp_path / "round-1" / "policy"))[0])
    assert again.state.global_step == 2
    more = trainer_for(bases("qwen2_5_vl"), tmp_path, rounds=2)
    more.train()
    assert more.sampler.policies == [str(tmp_path / "round-1" / "policy")]
    assert [entry["round"] for entry in more.rounds] == [0, 1]


@pytest.mark.full
def test_other_settings_are_refused_and_lose_nothing(bases, tmp_path):
    trainer_for(bases("qwen2_5_vl"), tmp_path, rounds=1).train()
    for changed, problem in (
        ({"beta": 0.5}, "beta: '0.1' → '0.5'"),
        ({"num_paths": 4}, "num_paths: '3' → '4'"),
        ({"label_smoothing": 0.1}, r"label_smoothing: \(absent\) → '0.1'"),
        ({"train_sampling_strategy": "sequential"}, r"train_sampling_strategy: \(absent\) → 'sequential'"),
    ):
        with pytest.raises(SettingsChanged, match=problem):
            trainer_for(bases("qwen2_5_vl"), tmp_path, rounds=2, **changed).train()
        assert (tmp_path / "round-1" / "policy").exists()


@pytest.mark.full
def test_paths_that_could_not_be_scored_are_scored_by_the_next_run(bases, tmp_path):
    class Failing(LengthReward):
        def score(self, rows):
            if any(len(row["completion"]) % 2 for row in rows):
                raise RuntimeError("no memory for long chains")
            return super().score(rows)

    model, run, eval_rows = bases("qwen2_5_vl"), {"rounds": 1}, questions(3)
    with pytest.raises(RuntimeError, match="of 3 paths . have no score; the first was not scored: RuntimeError: no"):
        trainer_for(model, tmp_path, Failing(), trainer_kwargs={"eval_dataset": eval_rows}, **run).train()
    with pytest.raises(RuntimeError, match="of 12 paths . have no score"):
        trainer_for(model, tmp_path, Failing(), **run).train()
    other = {"eval_dataset": eval_rows.map(lambda row: {"id": f"other {row['id']}"})}  # of which none failed
    trainer_for(model, tmp_path, LengthReward(), trainer_kwargs=other, **run).train()
    assert (tmp_path / "round-1" / "policy").exists()


@pytest.mark.full
def test_scores_are_kept_as_runs_of_earlier_versions_left_them_and_are_one_process_reward_model_s(bases, tmp_path):
    class Other(LengthReward):
        settings = {"kind": "other"}

    killed = trainer_for(bases("qwen2_5_vl"), tmp_path, LengthReward(), rounds=1)
    raise_at(0, killed, "training_step")
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    with Store(tmp_path / "rounds.sqlite") as store:
        kept = list(store.records("policy 0, training scores"))
    assert {record.id for record in kept} == {f"{id_}#{index}" for id_ in questions()["id"] for index in range(3)}
    assert {(record.index, *record.payload) for record in kept} == {(0, "steps", "answer")}
    with pytest.raises(SettingsChanged, match=r"'paths'[\s\S]*kind: 'length' → 'other'"):
        trainer_for(bases("qwen2_5_vl"), tmp_path, Other(), rounds=1).train()


@pytest.mark.full
def test_later_rounds_are_drawn_and_scored_as_the_first_one_was(bases, tmp_path):
    """Each round has stages of its own in the store, which are empty when it begins."""

    class Other(LengthReward):
        settings = {"kind": "other"}

    model = bases("qwen2_5_vl")
    trainer_for(model, tmp_path, LengthReward(), rounds=1).train()
    for reward, settings, problem in (
        (Other(), {}, "process_reward.kind: 'length' → 'other'"),
        (LengthReward(), {"top_p": 0.5}, "sampling_params.top_p: 0.95 → 0.5"),
    ):
        with pytest.raises(SettingsChanged, match=problem):
            trainer_for(model, tmp_path, reward, rounds=2, **settings).train()
    assert not (tmp_path / "round-2").exists()


@pytest.mark.full
def test_other_questions_without_ids_are_not_taken_for_those_before(bases, tmp_path):
    rows = questions().remove_columns(["id"])
    other = rows.map(lambda row: {"answer": "99"})
    trainer_for(bases("qwen2_5_vl"), tmp_path, rows=rows, trainer_kwargs={"eval_dataset": rows}, rounds=1).train()
    with pytest.raises(SettingsChanged, match="questions: "):
        trainer_for(bases("qwen2_5_vl"), tmp_path, rows=other, rounds=1).train()
    again = trainer_for(bases("qwen2_5_vl"), tmp_path, rows=rows, trainer_kwargs={"eval_dataset": other}, rounds=1)
    again.train()
    assert again.sampler.calls == len(other)
    assert again.rounds[-1]["eval"]["accuracy"] == 0


@pytest.mark.full
def test_between_rounds_no_optimizer_is_kept(bases, tmp_path):
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, rounds=1)
    create, made = trainer.create_optimizer, []

    def create_and_watch(*args, **kwargs):
        optimizer = create(*args, **kwargs)
        made.append(weakref.ref(trainer.optimizer))
        return optimizer

    trainer.create_optimizer = create_and_watch
    trainer.train()
    gc.collect()
    assert [optimizer() for optimizer in made] == [None]


@pytest.mark.full
def test_a_policy_in_memory_that_is_killed_while_it_is_saved_is_saved_anew(bases, tmp_path, monkeypatch):
    model, processor = load(bases("qwen2_5_vl"))
    killed = trainer_for(model, tmp_path, trainer_kwargs={"processing_class": processor}, rounds=1)

    def save_some(folder, **kwargs):
        Path(folder).mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(killed, "save_model", save_some)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    resumed = trainer_for(model, tmp_path, trainer_kwargs={"processing_class": processor}, rounds=1)
    resumed.train()
    assert same(load(resumed.sampler.policies[0])[0], load(bases("qwen2_5_vl"))[0])


@pytest.mark.parametrize("family", full_but("qwen2_5_vl", ["qwen2_5_vl", "internvl"]))
def test_an_adapter_s_reference_is_its_base(family, bases, tmp_path):
    adapter = LoraConfig(r=2, target_modules="all-linear", exclude_modules=["lm_head"])
    trainer = trainer_for(bases(family), tmp_path, trainer_kwargs={"peft_config": adapter})
    trainer.train()
    assert trainer.ref_model is None
    resumed = trainer_for(bases(family), tmp_path, trainer_kwargs={"peft_config": adapter})
    resumed.train()
    assert resumed.sampler.calls == 0
    assert_weights(resumed.model, trainer.model, atol=1e-6)
    kept = dict(load(bases(family))[0].named_parameters())
    changed = [name for name, value in trainer.model.named_parameters() if "lora_B" in name and value.any()]
    assert changed
    for name, value in trainer.model.get_base_model().named_parameters():
        if "lora" not in name:
            assert torch.equal(value, kept[name.replace(".base_layer", "")])


@pytest.mark.full
def test_a_frozen_encoder_s_adapter_stays_frozen_in_the_second_round(bases, tmp_path):
    """Each round makes an optimizer of what is trainable then, behind the reference passes of the round before."""
    adapter = LoraConfig(r=2, target_modules="all-linear", exclude_modules=["lm_head"], init_lora_weights="gaussian")
    settings = {"freeze_vision_encoder": True, "trainer_kwargs": {"peft_config": adapter}}
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, **settings)
    before = weights_of(trainer.model)
    trainer.train()
    changed = changed_weights(trainer.model, before)
    assert {name.partition("lora_")[1] for name in changed} == {"lora_"}
    place = parts_of(trainer.model)
    assert {place[name] for name in changed} == {"projector", "language"}


def test_other_questions_are_answered_before_and_after_every_round(bases, tmp_path):
    rows = questions(3)
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, LengthReward(), trainer_kwargs={"eval_dataset": rows})
    trainer.train()
    assert [sorted(entry) for entry in trainer.rounds] == [["eval", "round", "train"]] * 2 + [["eval", "round"]]
    names = {"steps", "step_tokens", "complete", "accuracy", "trajectory_score"}
    assert all(set(entry["eval"]) == names for entry in trainer.rounds)
    assert json.loads((tmp_path / "rounds.json").read_text()) == trainer.rounds


class NotingWriters(Writers):
    """Remembers how paths were drawn, too."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def sample(self, requests, sampling_params):
        self.drawn += [(len(self.policies), sampling_params.temperature, request.seed) for request in requests]
        return super().sample(requests, sampling_params)


@pytest.mark.full
def test_rounds_draw_with_seeds_of_their_own_and_other_questions_are_answered_greedily(bases, tmp_path):
    given = {"eval_dataset": questions(2), "sampler": NotingWriters()}
    trainer_for(bases("qwen2_5_vl"), tmp_path, trainer_kwargs=given).train()
    drawn = given["sampler"].drawn
    before, after = [(1, 0)] * 2 + [(2, 1.0)] * 12, [(3, 0)] * 2 + [(4, 1.0)] * 12
    assert [(use, temperature) for use, temperature, _ in drawn] == [*before, *after, *[(5, 0)] * 2]
    assert len({seed for _, temperature, seed in drawn if temperature}) == 24


def test_the_step_weight_reaches_the_pairs(bases, tmp_path):
    trainer_for(bases("qwen2_5_vl"), tmp_path, LengthReward(), rounds=1, step_weight=1.0, pair_threshold=0.05).train()
    pairs = Dataset.from_parquet(str(tmp_path / "round-1" / "pairs.parquet"))
    for said, scores in (("chosen", "chosen_score"), ("rejected", "rejected_score")):
        texts = [message[0]["content"] for message in pairs[said]]
        assert pairs[scores][:] == pytest.approx([len(text) % 10 / 10 * ("<|" in text) for text in texts])


def test_questions_need_no_id_and_no_image_column(bases, tmp_path):
    rows = questions().remove_columns(["id", "images"])
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, rows=rows, rounds=1)
    trainer.train()
    assert trainer.state.global_step == 2


@pytest.mark.full
def test_an_in_memory_policy_is_its_own_reference(bases, tmp_path):
    model, processor = load(bases("qwen2_5_vl"))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.5)
    trainer = trainer_for(model, tmp_path, trainer_kwargs={"processing_class": processor}, rounds=1)
    assert same(trainer.model, trainer.ref_model)
    trainer.train()
    assert same(load(trainer.sampler.policies[0])[0], trainer.ref_model)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rounds": 0}, "rounds=0"),
        ({"num_paths": 1}, "num_paths=1, expected 2"),
        ({"temperature": 0}, "the same path each time"),
        ({"pair_threshold": -0.1}, "threshold is -0.1"),
        ({"pairing": "some"}, "unknown pairing 'some'; expected one of best_worst, ranked, all, step_wise"),
        ({"pairing": "step_wise", "max_pairs": 2}, "pairing='step_wise' came with max_pairs=2"),
        ({"pairing": "step_wise", "step_weight": 0.5}, "pairing='step_wise' came with .* step_weight=0.5"),
        ({"pairing": "step_wise", "chains": False}, "pairing='step_wise' came with .* chains=False"),
        ({"step_weight": 2}, "step_weight is 2"),
        ({"max_length": 512}, "max_length=512 is not supported"),
        ({"precompute_ref_log_probs": True}, "the pairs are made during training"),
        ({"sync_ref_model": True}, "the reference is the SFT model"),
        (
            {"eval_strategy": "steps", "eval_steps": 1},
            "got eval_strategy='steps' and eval_on_start=False, expected 'no' and False",
        ),
        ({"eval_on_start": True}, "eval_on_start=True, expected"),
    ],
)
def test_settings_that_make_no_sense(settings, problem):
    with pytest.raises(ValueError, match=problem):
        IterativeDPOConfig("out", use_cpu=True, bf16=False, **settings)


def test_a_policy_without_the_tokens_is_refused(checkpoints, tmp_path):
    with pytest.raises(ValueError, match="Let add_chain_tokens"):
        trainer_for(checkpoints("qwen2_5_vl"), tmp_path)


@pytest.mark.full
def test_the_folder_of_an_adapter_is_refused_and_the_adapter_itself_trains_against_itself(bases, tmp_path):
    base, processor = load(bases("qwen2_5_vl"))
    settings = {"r": 2, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    get_peft_model(base, LoraConfig(**settings)).save_pretrained(tmp_path / "sft")
    with pytest.raises(ValueError, match="sft holds an adapter, expected a whole model. Pass PeftModel"):
        trainer_for(str(tmp_path / "sft"), tmp_path / "dpo")
    model = PeftModel.from_pretrained(load(bases("qwen2_5_vl"))[0], tmp_path / "sft", is_trainable=True)
    before = {name: value.clone() for name, value in model.named_parameters() if "lora" in name}
    trainer = trainer_for(model, tmp_path / "dpo", trainer_kwargs={"processing_class": processor})
    trainer.train()
    after = dict(trainer.model.named_parameters())
    assert all(torch.equal(after[name.replace(".default.", ".ref.")], value) for name, value in before.items())
    assert not all(torch.equal(after[name], value) for name, value in before.items())
    assert trainer.state.log_history[0]["loss"] == pytest.approx(0.6931, abs=1e-4)


def test_what_it_has_of_its_own(bases, tmp_path):
    with pytest.raises(TypeError, match="leave `ref_model` out"):
        trainer_for(bases("qwen2_5_vl"), tmp_path, trainer_kwargs={"ref_model": object()})
    with pytest.raises(ValueError, match="resumes from the rounds"):
        trainer_for(bases("qwen2_5_vl"), tmp_path).train("somewhere")
    with pytest.raises(TypeError, match="eval_dataset is of type dict, expected one datasets.Dataset"):
        trainer_for(bases("qwen2_5_vl"), tmp_path, trainer_kwargs={"eval_dataset": {"easy": questions()}})
    with pytest.raises(ValueError, match="step_weight=0.5 weighs the scores of a process reward model, and there is"):
        trainer_for(bases("qwen2_5_vl"), tmp_path, step_weight=0.5)
    with pytest.raises(ValueError, match="pairing='step_wise' compares single steps, and there is no process reward"):
        trainer_for(bases("qwen2_5_vl"), tmp_path, pairing="step_wise")
    with pytest.raises(ValueError, match="chains=False came with a process reward model"):
        trainer_for(bases("qwen2_5_vl"), tmp_path, LengthReward(), chains=False)
    with pytest.raises(TypeError, match="expected IterativeDPOConfig"):
        IterativeDPOTrainer(bases("qwen2_5_vl"), None, args=1, train_dataset=questions())


CHAINS = [chain_of_steps(solve(problem)) for problem in make_problems(["adding", "counting", "table"], 10)]


class SeedWriter:
    """What a path says follows from its seed."""

    settings = {"kind": "seed"}

    def sample(self, requests, sampling_params):
        return [[Sample(CHAINS[request.seed % 10], "stop", token_ids=[1])] for request in requests]


class PlaceReward:
    """A path's score follows from its text, so that the pairs do not depend on who samples."""

    settings = {"kind": "place among the chains"}

    def score(self, rows):
        places = [CHAINS.index(row["completion"]) / 10 for row in rows]
        return [Scores(torch.tensor([place]), place) for place in places]


def two_rounds(model, folder, pairs_a_process):
    run = {"num_paths": 5, "per_device_train_batch_size": pairs_a_process, "optim": "sgd", "learning_rate": 1e-3}
    run |= {"pair_threshold": 0.0}  # a pair a question: three equal steps of four pairs, whatever the processes
    given = {"rows": drawn_rows(12), "trainer_kwargs": {"sampler": lambda _: SeedWriter()}}
    trainer = trainer_for(model, folder, PlaceReward(), **given, **run)
    trainer.train()
    world_size = trainer.accelerator.num_processes
    return {"world_size": world_size, "weights": weights_of(trainer.model), "rounds": trainer.rounds}


@pytest.mark.full
def test_two_processes_equal_one(bases, tmp_path):
    alone, pair = one_and_two(two_rounds, bases("qwen2_5_vl"), tmp_path, 4)
    assert [entry["train"]["pairs"] for entry in alone["rounds"]] == [12, 12]
    for part in pair:
        assert part["rounds"] == alone["rounds"]
        assert_weights(part["weights"], alone["weights"], atol=1e-5)
