"""Two-turn rollouts: what is asked, what is sampled, and which tokens count."""

import pytest
import torch
from datasets import Dataset
from support import (
    adapo_trainer,
    changed_weights,
    images_shown,
    is_even,
    load,
    prepared_batch,
    scored,
    weights_of,
    whole,
)

from trl_mmreason.adapo.prompts import EVALUATION_PROMPT
from trl_mmreason.compat.chat_template import next_turn_ids
from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.training.padding import model_inputs


def spy_on_generation(trainer):
    """Record the prompts and answers of every call of TRL's generation, and let it work."""
    calls, generate = [], trainer._generate_single_turn

    def record(prompt_ids, *args, **kwargs):
        answers, logps = generate(prompt_ids, *args, **kwargs)
        calls.append(([list(ids) for ids in prompt_ids], [list(ids) for ids in answers]))
        return answers, logps

    trainer._generate_single_turn = record
    return calls


def test_the_second_prompt_is_the_first_the_sampled_answer_and_the_template(family, checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows, max_completion_length=4)
    calls = spy_on_generation(trainer)
    batch = prepared_batch(trainer)
    (prompts, first), (second_prompts, second) = calls
    ended = [row for row, ids in enumerate(first) if ids[-1] in trainer.eos_token_ids]
    assert 0 < len(ended) < len(first)  # both cases occur
    followup = next_turn_ids(trainer.processing_class, EVALUATION_PROMPT, eos_token_ids=trainer.eos_token_ids)
    assert second_prompts == [prompts[row] + first[row] + followup for row in ended]

    for row, mask in enumerate(batch["completion_mask"].bool()):
        completion = batch["completion_ids"][row][mask].tolist()
        if row in ended:  # y1, the user's turn, y2
            answer = second[ended.index(row)]
            assert completion == first[row] + followup + answer
        else:  # an answer that did not end gets no second turn
            assert completion == first[row]


def test_rewards_see_the_turns_as_messages(checkpoints, rows, tmp_path):
    seen = {}
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    calls = spy_on_generation(trainer)
    grade = trainer.adapo
    trainer.reward_funcs[0] = lambda **kwargs: seen.update(kwargs) or grade(**kwargs)
    prepared_batch(trainer)
    (_, first), (_, second) = calls
    decode = trainer.processing_class.decode
    ended = [row for row, ids in enumerate(first) if ids[-1] in trainer.eos_token_ids]
    for row, messages in enumerate(seen["completions"]):
        assert messages[0] == {"role": "assistant", "content": decode(first[row], skip_special_tokens=True)}
        if row in ended:
            answer = decode(second[ended.index(row)], skip_special_tokens=True)
            assert messages[1:] == [
                {"role": "user", "content": EVALUATION_PROMPT},
                {"role": "assistant", "content": answer},
            ]
        else:
            assert len(messages) == 1


def test_the_type_of_a_trajectory(checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    eos = trainer.eos_token_ids[0]

    def messages(*texts):
        return [{"role": ("assistant", "user")[i % 2], "content": text} for i, text in enumerate(texts)]

    assert is_even("b")
    assert not is_even("a")
    completions = [messages("b", "?", "b"), messages("a", "?", "b"), messages("b", "?", "a"), messages("b")]
    trainer.adapo(completions, [[eos], [eos], [eos, 100], [100]], answer=["x"] * 4)
    # 1→1; 0→1; 1→0 whose y2 was cut; y1 cut: there is no second answer, which is not right
    assert trainer.types == [(True, True, False), (False, True, False), (True, False, True), (True, False, True)]


def test_what_the_user_says_carries_no_loss_kl_or_entropy(family, checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows, beta=0.1, filter_truncated=False)
    batch = prepared_batch(trainer)
    asked = (batch["completion_mask"] == 1) & (batch["tool_mask"] == 0)
    kept = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert asked.any()
    loss = trainer.compute_loss(trainer.model, batch)
    logged = {name: trainer._metrics["train"][name][-1] for name in ("entropy", "kl_t1", "kl_t2", "kl")}

    def loss_with(**changes):
        return trainer.compute_loss(trainer.model, {**batch, **changes}).item()

    # whatever the reference and the sampling policy say of the user's words, loss and logs stay
    noise = torch.randn_like(batch["ref_per_token_logps"]) * asked
    same = loss_with(
        ref_per_token_logps=batch["ref_per_token_logps"] + noise,
        old_per_token_logps=batch["ref_per_token_logps"] + noise,
    )
    assert same == pytest.approx(loss.item(), abs=1e-6)
    for name, value in logged.items():
        assert trainer._metrics["train"][name][-1] == pytest.approx(value, abs=1e-6)
    assert loss_with(ref_per_token_logps=batch["ref_per_token_logps"] + 0.5 * kept) != pytest.approx(loss.item())

    _, entropies, _ = scored(trainer, batch, compute_entropy=True)
    assert logged["entropy"] == pytest.approx(entropies[kept].mean().item(), rel=1e-5)


def completion_logits(trainer, batch):
    """Logits that predict each token of the completions, of the whole sequence in one forward pass."""
    ids, mask = whole(batch)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids, attention_mask=mask, **model_inputs(batch["fields"], mask)).logits
    return logits[:, batch["prompt_ids"].shape[1] - 1 : -1]


def test_the_training_pass_agrees_with_generation_in_both_turns(family, checkpoints, rows, tmp_path):
    """Greedy tokens are the most likely ones of the training pass: positions, images and token types are right."""
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows, filter_truncated=False)
    trainer.generation_config.do_sample = False  # which the configuration refuses
    batch = prepared_batch(trainer)
    logits = completion_logits(trainer, batch)
    logits[..., trainer.model.config.image_token_id] = -torch.inf  # never generated
    predicted = logits.argmax(-1)
    # greedy groups have one reward, so the filter has masked them all: take what was written from the ids themselves
    mask = batch["completion_mask"].bool()
    followup = trainer._followup_ids
    for row in range(len(mask)):
        completion, guess = batch["completion_ids"][row][mask[row]].tolist(), predicted[row][mask[row]].tolist()
        start = next((i for i in range(len(completion)) if completion[i : i + len(followup)] == followup), None)
        spans = [(0, len(completion))] if start is None else [(0, start), (start + len(followup), len(completion))]
        for begin, end in spans:
            assert completion[begin:end] == guess[begin:end]


def test_sampling_log_probabilities_stay_with_their_tokens(checkpoints, rows, tmp_path):
    """vLLM hands them back with each answer; the user's turn between two answers has none."""
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    generate = trainer._generate_single_turn

    def as_vllm(*args, **kwargs):
        answers, _ = generate(*args, **kwargs)
        return answers, [[-float(token) for token in ids] for ids in answers]

    trainer._generate_single_turn = as_vllm
    trainer.model.train()
    prompts = [row["prompt"] for row in rows[:8]]
    rolled = trainer.rollout_func(prompts, trainer)
    assert any(0 in mask for mask in rolled["env_mask"])
    for ids, mask, logps in zip(rolled["completion_ids"], rolled["env_mask"], rolled["logprobs"], strict=True):
        assert logps == [-float(token) * sampled for token, sampled in zip(ids, mask, strict=True)]


def test_a_processor_that_pads_right_is_put_right(checkpoints, rows, tmp_path):
    _, processor = load(checkpoints("qwen2_5_vl"))
    processor.tokenizer.padding_side = "right"
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, trainer_kwargs={"processing_class": processor})
    batch = prepared_batch(trainer)
    image = batch["prompt_ids"] == trainer.model.config.image_token_id
    _, mask = whole(batch)
    types = model_inputs(batch["fields"], mask)["mm_token_type_ids"][:, : image.shape[1]].bool()
    assert image.any()
    assert torch.equal(image, types)


def test_prompts_that_are_no_conversation_are_refused(checkpoints, tmp_path):
    rows = [{"prompt": "How many?", "answer": "1"}] * 8
    with pytest.raises(ValueError, match="^AdaPOTrainer: a second turn needs conversational prompts"):
        adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)


def learns_something(trainer):
    before = weights_of(trainer.model)
    trainer.train()
    return bool(changed_weights(trainer.model, before))


def test_questions_without_images(family, checkpoints, rows, tmp_path):
    text_only = [{"prompt": row["prompt"], "answer": row["answer"]} for row in rows]
    trainer = adapo_trainer(checkpoints(family), tmp_path, text_only, filter_zero_advantage=False)
    assert learns_something(trainer)
    assert trainer.state.log_history[0]["length_t2"] > 0


def test_images_that_stand_in_the_messages(family, checkpoints, rows, tmp_path):
    """The loss sees what generation saw: the same log-probabilities as with an `images` column."""
    with_images = [row for row in rows if len(row["images"]) == 1][:2] * 4
    inside = [
        {**row, "prompt": [{"role": "user", "content": [{"type": "image", "image": row["images"][0]}, *written(row)]}]}
        for row in with_images
    ]
    for row in inside:
        del row["images"]
    losses = []
    for given in (with_images, inside):
        trainer = adapo_trainer(checkpoints(family), tmp_path, rows, beta=0.1, filter_truncated=False)
        batch = prepared_batch(trainer, given)
        batch["ref_per_token_logps"] = batch["ref_per_token_logps"] - 1.0  # makes the loss depend on the logps
        losses.append(trainer.compute_loss(trainer.model, batch).item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def written(row):
    return [{"type": "text", "text": row["prompt"][0]["content"]}]


def test_no_image_may_be_written_as_none(checkpoints, rows, tmp_path):
    empty = [{**row, "images": None} for row in rows[:8]]
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows)
    assert not any(row["image"] for row in prepared_batch(trainer, empty)["fields"])
    single = [{"prompt": row["prompt"], "answer": "1", "image": None} for row in rows[:7]]
    single.append({"prompt": rows[0]["prompt"], "answer": "1", "image": rows[0]["images"][0]})
    assert images_shown(trainer._generate_and_score_completions(single)) == [0] * 7 + [1]


def test_evaluation_runs_both_turns_and_counts_every_question_once(checkpoints, rows, tmp_path):
    """Nine questions in batches of eight and one: the mean over questions, not over batches."""
    settings = {"per_device_eval_batch_size": 8, "num_generations_eval": 1}
    settings["trainer_kwargs"] = {"eval_dataset": Dataset.from_list(rows[:9])}
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, **settings)
    seen, score_groups = [], trainer.score_groups
    trainer.score_groups = lambda rewards: seen.extend(trainer.types) or score_groups(rewards)
    metrics = trainer.evaluate()
    assert len(seen) == 9
    assert metrics["eval_acc_t1"] == pytest.approx(sum(each.first_correct for each in seen) / 9)
    assert metrics["eval_acc_t2"] == pytest.approx(sum(each.second_correct for each in seen) / 9)
    assert metrics["eval_length_t2"] > 0


def test_the_group_size_of_evaluation_is_used_in_evaluation(checkpoints, rows, tmp_path):
    trainer = adapo_trainer(checkpoints("qwen2_5_vl"), tmp_path, rows, num_generations_eval=2)
    trainer.model.eval()
    assert trainer.in_groups(torch.arange(8)).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    asked, generate = [], trainer._generate_single_turn

    def record(prompt_ids, images, fields, num_generations):
        asked.append(num_generations)
        return generate(prompt_ids, images, fields, num_generations)

    trainer._generate_single_turn = record
    trainer._generate_and_score_completions([dict(row) for row in rows[:8]])
    assert asked == [2, 1]


def test_an_image_is_never_sampled(family, checkpoints, rows, tmp_path):
    """A policy that wants to write image placeholders would break the next forward pass."""
    trainer = adapo_trainer(checkpoints(family), tmp_path, rows, filter_truncated=False)
    left_out = {*placeholder_ids(trainer.model.config)}  # those of video, too
    assert {*trainer.generation_config.suppress_tokens} == left_out
    image = trainer.model.config.image_token_id
    with torch.no_grad():
        trainer.model.get_output_embeddings().weight[image] *= 1000  # where its logit is positive, nothing else counts
    batch = prepared_batch(trainer)
    assert not (batch["completion_ids"] == image).any()
    assert (completion_logits(trainer, batch).argmax(-1) == image).any()  # it would have been
