"""Step-wise pairs: by hand, what of them is learnt in every family, and a round of DPO on them."""

import json

import pytest
import torch
from datasets import Dataset
from scripted_search import B_C, PROCEED, TWO_STEPS, A, B, ScriptedEngine, ScriptedReward, answer, rows_of, step
from support import PATHS_RUN, drawn_rows, ids_of, load, losses_of, maker

from trl_mmreason import IterativeDPOConfig, IterativeDPOTrainer
from trl_mmreason.chain_of_step.objective import last_part_mask
from trl_mmreason.chain_of_step.pairs import Pair, make_step_pairs, pairs_dataset, searched_paths
from trl_mmreason.chain_of_step.protocols import search_answers
from trl_mmreason.jobs.store import Store

RUN = {**PATHS_RUN, "max_steps": -1, "warmup_steps": 0, "num_train_epochs": 1}
RUN |= {"rounds": 1, "num_paths": 2, "pairing": "step_wise"}

D = B + "\n" + PROCEED + step("d 0.1")
SEVEN, EIGHT = B_C + answer("7,0.9"), B_C + answer("8,0.3")


def searched_in(folder, script):
    """The stored searches of a script, in its order; every gold answer is "7,0.9"."""
    rows = Dataset.from_list([{**row, "answer": "7,0.9"} for row in rows_of(script)])
    with Store(folder / "searches.sqlite") as store:
        found = search_answers(rows, ScriptedEngine(script), ScriptedReward(), store, n=2, stage="searches")
    return list(found.values())


def texts(pairs):
    said = zip(pairs["chosen"], pairs["rejected"], strict=True)
    return [(chosen[0]["content"], rejected[0]["content"]) for chosen, rejected in said]


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.2, [(B, A), (SEVEN, EIGHT)]),  # 0.7 - 0.4 and 0.9 - 0.3 exceed it, 0.2 - 0.1 does not
        (0.05, [(B, A), (B_C, D), (SEVEN, EIGHT)]),  # the second step is compared behind the better first one
    ],
)
def test_the_best_and_the_worst_candidate_of_every_stage(threshold, expected, tmp_path):
    rows = Dataset.from_list(drawn_rows(2))
    (search,) = searched_in(tmp_path, {"sum": TWO_STEPS})
    pairs = make_step_pairs(rows, {rows["id"][1]: search}, threshold=threshold)
    assert texts(pairs) == expected
    assert pairs["id"] == [rows["id"][1]] * len(expected)
    assert pairs["prompt"] == [rows["prompt"][1]] * len(expected)
    assert [len(images) for images in pairs["images"]] == [2] * len(expected)  # the second row has two images
    assert pairs["chosen_score"][0] == pytest.approx(0.7)
    assert pairs["rejected_score"][-1] == pytest.approx(0.3)


def test_a_search_that_found_no_answer_gives_the_pairs_of_the_stages_it_had(tmp_path):
    """Behind b nothing is a whole part; in the other search nothing is at all, or all candidates say the same."""
    script = {"cut": {"": [A, B], B: ["no", "chain"]}, "none": {"": ["no", "chain"]}}
    script["alike"] = {"": [A, A], A: [answer("7,0.9")] * 2}
    found = searched_in(tmp_path, script)
    rows = Dataset.from_list(drawn_rows(4))
    pairs = make_step_pairs(rows, dict(zip(rows["id"], found, strict=False)))
    assert texts(pairs) == [(B, A)]


def test_the_chain_that_a_search_kept_and_its_score(tmp_path):
    """Steps of 0.7 and 0.2, an answer of 0.9: 0.2 * 0.45 + 0.8 * 0.9 = 0.81; without an answer 0.2 * 0.7 = 0.14."""
    found = searched_in(tmp_path, {"sum": TWO_STEPS, "cut": {"": [A, B], B: ["no", "chain"]}})
    paths = searched_paths(found)
    assert [(path.text, path.correct) for path in paths] == [(SEVEN, True), (B, False)]
    assert [path.score for path in paths] == pytest.approx([0.81, 0.14])


def test_the_mask_of_the_last_part():
    """p: prompt, c: completion, E: a token that ends a part, t: what the template writes behind."""
    rows = {
        "pEccEcEt": "00000110",  # an end in the prompt is no end of a part
        "ppccccEt": "00111110",
        "ppcccccc": "00000000",
        "ppEEccEt": "00001110",
    }
    is_end = torch.tensor([[letter == "E" for letter in row] for row in rows])
    completion = torch.tensor([[place >= 2 for place in range(8)] for _ in rows])
    expected = torch.tensor([[bit == "1" for bit in bits] for bits in rows.values()])
    assert torch.equal(last_part_mask(is_end, completion), expected)


def trainer_for(model, folder, **settings):
    rows = [{**row, "id": "sum", "prompt": [{"role": "user", "content": "sum"}]} for row in drawn_rows(1)]
    engine, reward = ScriptedEngine({"sum": TWO_STEPS}), ScriptedReward()
    args = {"process_reward_model": reward, "sampler": lambda _: engine}
    return maker(IterativeDPOTrainer, IterativeDPOConfig, arguments=args, **RUN)(model, folder, rows, **settings)


def step_pairs():
    """Three stages of one search, the first two with an image, the last with two."""
    rows = Dataset.from_list(drawn_rows(2))
    return pairs_dataset(rows, [Pair(0, B, A, 1, 0), Pair(0, B_C, D, 1, 0), Pair(1, SEVEN, EIGHT, 1, 0)])


def test_nothing_but_the_parts_is_learnt(family, bases, tmp_path):
    """Neither what was kept before, nor the end of the turn, which follows no step."""
    trainer = trainer_for(bases(family), tmp_path)
    batch = trainer.data_collator(list(step_pairs()))
    learnt = [ids[mask.bool()] for ids, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)]
    chosen = [B, B_C.removeprefix(B), answer("7,0.9")]
    rejected = [A, D.removeprefix(B), answer("8,0.3")]
    said = trainer.processing_class.batch_decode(learnt)
    assert [text.lstrip(" ") for text in said] == chosen + rejected  # LLaVA-NeXT's template begins an answer with one


def last_place(ids, part):
    """(T,) bool, True where `part` stands in `ids` for the last time."""
    size = len(part)
    start = max(place for place in range(len(ids) - size + 1) if ids[place : place + size].tolist() == part)
    return (torch.arange(len(ids)) >= start) & (torch.arange(len(ids)) < start + size)


def test_the_rewards_are_those_of_the_parts(bases, tmp_path):
    """beta times the log-ratio of policy and reference, of the parts' tokens alone (Eq. 2 with the part for y)."""
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path)
    with torch.no_grad():
        trainer.model.get_output_embeddings().weight.mul_(1.5)
    batch = trainer.data_collator(list(step_pairs()))
    trainer.compute_loss(trainer.model, dict(batch))
    del batch["completion_mask"]
    parts = [B, B_C.removeprefix(B), answer("7,0.9"), A, D.removeprefix(B), answer("8,0.3")]
    mask = torch.stack(
        [
            last_place(ids, ids_of(trainer.processing_class, part))
            for ids, part in zip(batch["input_ids"], parts, strict=True)
        ]
    )[:, 1:]

    def log_probabilities(model):
        with torch.no_grad():
            logits = model(**batch).logits[:, :-1].log_softmax(dim=-1)
        return (logits.gather(2, batch["input_ids"][:, 1:, None])[..., 0] * mask).sum(dim=1)

    chosen, rejected = (0.1 * (log_probabilities(trainer.model) - log_probabilities(trainer.ref_model))).chunk(2)
    logged = {name: values[-1] for name, values in trainer._metrics["eval"].items()}
    assert logged["rewards/chosen"] == pytest.approx(chosen.mean().item(), abs=1e-4)
    assert logged["rewards/rejected"] == pytest.approx(rejected.mean().item(), abs=1e-4)
    assert abs(chosen.mean()) > 0.1


def test_a_round_on_steps(bases, tmp_path):
    """0.7 - 0.4 and 0.9 - 0.3 are pairs; the chain of the best parts scores 0.81, and its answer is wrong."""
    trainer = trainer_for(bases("qwen2_5_vl"), tmp_path, per_device_train_batch_size=1, learning_rate=1e-3)
    trainer.train()
    pairs = Dataset.from_parquet(str(tmp_path / "round-1/pairs.parquet"))
    assert texts(pairs) == [(B, A), (SEVEN, EIGHT)]
    (measured,) = json.loads((tmp_path / "rounds.json").read_text())
    assert measured["train"].pop("step_tokens")
    expected = {"steps": 2, "complete": 1, "accuracy": 0, "pairs": 2, "trajectory_score": pytest.approx(0.81)}
    assert measured["train"] == expected
    losses = losses_of(trainer)
    assert losses[0] == pytest.approx(0.6931, abs=1e-4)  # log 2: the policy is its reference
    base, _ = load(bases("qwen2_5_vl"))
    assert not torch.equal(trainer.model.get_output_embeddings().weight, base.get_output_embeddings().weight)
    again = trainer_for(bases("qwen2_5_vl"), tmp_path, per_device_train_batch_size=1, learning_rate=1e-3)
    again.train()
    assert again.sampler(None).calls == []
