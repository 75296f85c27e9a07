"""What a colocated run shows after its training, with the engine that it has."""

import pytest
import requests
import torch
from datasets import Dataset
from recorded import recorded_ids
from support import drawn_rows
from trl import GRPOTrainer
from trl.data_utils import prepare_multimodal_messages
from trl.generation.vllm_generation import VLLMGeneration
from vllm_policies import random_policy, rollout_of

from trl_mmreason.compat.replaced import replaced
from trl_mmreason.compat.vllm_prompts import PromptMismatch
from trl_mmreason.generation.protocols import TwoTurn
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.generation.vllm_engine import LoadedVLLM
from trl_mmreason.scripts import comparison
from trl_mmreason.training.first_rollout import compare_with_vllm


def checks(trainer, family):
    """Everything that test_vllm.py asserts beside the rollouts of the training run."""
    rows = next(iter(trainer.get_train_dataloader()))
    shown = {"upstream_prompts": upstream_prompts(trainer, rows), "own_prompts": own_prompts(trainer, rows)}
    shown |= {"after_upstream_sync": after_sync(trainer, rows, VLLMGeneration.sync_weights, seed=1)}
    shown |= {"after_own_sync": after_sync(trainer, rows, type(trainer.vllm_generation).sync_weights, seed=2)}
    shown |= {"synced": synced(trainer), "served": served_as_old(trainer, rows)}
    shown |= {"other_limits": with_other_pixel_limits(trainer, rows)}
    shown |= {"cut_sampling": with_top_p(trainer, rows, 0.9)}
    shown |= {"first_rollout": first_rollouts(trainer, rows)}
    shown |= {"placeholders": placeholders_of_random_policy(trainer, family)}
    return shown


def evaluations(trainer):
    """Seven questions to the trained policy, two turns each, as `train_and_compare` asks them, by each engine.

    Returns:
        Engine → the token ids that this process sampled, and how long the graded samples are and which were cut.
    """
    rows, found = Dataset.from_list(drawn_rows(7, seed=2)), {}
    # under FSDP transformers answers
    for name, engine, is_fsdp in (("vllm", LoadedVLLM, False), ("transformers", TransformersEngine, True)):
        with recorded_ids(engine) as ids, replaced(trainer, is_fsdp_enabled=is_fsdp):
            table = comparison._evaluate(trainer, rows, TwoTurn("Again."), name).table
        places = [table.names.index(name) for name in ("tokens", "truncated")]
        found[name] = {"ids": ids, "ended": table.numerator[:, places].tolist()}
    return found


def prompts_read(trainer, rows, way):
    """The prompts that the engine reads when `way`, a trainer class, tokenises and generates; and the trainer's own."""
    read, engine = [], trainer.vllm_generation.llm
    answer = engine.generate

    def record(*args, **kwargs):
        outputs = answer(*args, **kwargs)
        read.extend(list(output.prompt_token_ids) for output in outputs)
        return outputs

    engine.generate = record
    prompts = [prepare_multimodal_messages(row["prompt"], images=row["images"]) for row in rows]
    try:
        ids, images, fields = way._tokenize_prompts(trainer, prompts)
        way._generate_single_turn(trainer, ids, images, fields, 4)
    finally:
        engine.generate = answer
    return {"read": read, "trained": [list(row) for row in ids], "pictures": [len(row or []) for row in images]}


def upstream_prompts(trainer, rows):
    """What TRL's own path makes the engine read."""
    corrected = type(trainer.vllm_generation)
    trainer.vllm_generation.__class__ = VLLMGeneration
    try:
        return prompts_read(trainer, rows, GRPOTrainer)
    finally:
        trainer.vllm_generation.__class__ = corrected


def own_prompts(trainer, rows):
    """What ours makes it read."""
    return prompts_read(trainer, rows, type(trainer))


@torch.no_grad()
def after_sync(trainer, rows, sync, *, seed):
    """A rollout on images seen before, after the vision tower has changed and `sync` has sent it."""
    trainer._generate_and_score_completions(rows)  # the engine has encoded these images now
    torch.manual_seed(seed)
    for weight in trainer.model.base_model.visual.parameters():
        weight += 0.05 * torch.randn_like(weight)
    sync(trainer.vllm_generation)
    return rollout_of(trainer._generate_and_score_completions(rows))


def with_other_pixel_limits(trainer, rows):
    """The message of a rollout with a processor that makes fewer tokens of an image than the checkpoint's."""
    processor = trainer.processing_class.image_processor
    size, processor.size = processor.size, {"shortest_edge": 28 * 28, "longest_edge": 2 * 28 * 28}
    try:
        own_prompts(trainer, rows)
    except PromptMismatch as error:
        return str(error)
    finally:
        processor.size = size
    return None


def with_top_p(trainer, rows, top_p):
    """A rollout that samples among the likely tokens alone."""
    generation = trainer.vllm_generation
    before, generation.top_p = generation.top_p, top_p
    try:
        return rollout_of(trainer._generate_and_score_completions(rows))
    finally:
        generation.top_p = before


def first_rollouts(trainer, rows):
    """Setting of sampling → nats that the check of the first rollout finds; another temperature is refused."""
    said, generation = {}, trainer.vllm_generation
    for name, value in {"top_p": 0.9, "top_k": 5, "min_p": 0.1, "temperature": 0.7}.items():
        with replaced(trainer, **{name: value}), replaced(generation, **{name: value}):
            trainer._generate_and_score_completions([dict(row) for row in rows])
            said[name] = compare_with_vllm(trainer, set())
            other, message = replaced(trainer, temperature=1.02 * trainer.temperature), "samples with vLLM has .* Fix"
            with other, pytest.raises(ValueError, match=message):
                compare_with_vllm(trainer, set())
    return said


def served_as_old(trainer, rows):
    """A rollout whose old log-probabilities are vLLM's, the passes that scored it, and its gradient beside the other.

    Returns:
        `passes` with and without; `old` and `sampled` log-probabilities; `gradients` of both ways for the same answers.
    """
    passes, model = [], trainer.model
    hook = model.register_forward_pre_hook(lambda *_: passes.append(1))
    made = {}
    for way in (True, False):
        trainer.args.sampled_as_old = way
        passes.clear()
        made[way] = trainer._generate_and_score_completions([dict(row) for row in rows])
        made[way, "passes"] = len(passes)
    hook.remove()
    trainer.args.sampled_as_old = False
    batch, gradients = made[False], []
    sampled = {"old_per_token_logps": batch["sampling_per_token_logps"], "importance_sampling_ratio": torch.tensor(1.0)}
    for inputs in (batch, batch | sampled):
        model.zero_grad()
        trainer.compute_loss(model, dict(inputs)).backward()
        gradients.append(torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]))
    model.zero_grad()
    old, given = made[True]["old_per_token_logps"], made[True]["sampling_per_token_logps"]
    return {
        "old": old,
        "sampled": given,
        "gradients": gradients,
        "passes": [made[way, "passes"] for way in (True, False)],
    }


@torch.no_grad()
def synced(trainer):
    """What vLLM holds after TRL's sync, weight by weight, and after ours, and how often each called `load_weights`."""
    generation, shown = trainer.vllm_generation, {}
    model = generation.llm.llm_engine.model_executor.driver_worker.model_runner.model
    weights, load = dict(model.named_parameters()), model.load_weights
    for name, of in {"upstream": VLLMGeneration, "own": type(generation)}.items():
        calls = []
        for weight in weights.values():
            weight.zero_()
        with replaced(model, load_weights=lambda pairs, calls=calls: calls.append(load(pairs))):
            of.sync_weights(generation)
        shown[name] = {"weights": {name: weight.clone() for name, weight in weights.items()}, "calls": len(calls)}
    return shown


@torch.no_grad()
def placeholders_of_random_policy(trainer, family):
    """Count the placeholders among samples of an unmodified random policy, with our sampling settings and TRL's."""
    model, processor = random_policy(family)
    trainer.model.load_state_dict(model.state_dict())
    generation = trainer.vllm_generation
    generation.sync_weights()
    prompts = [processor.tokenizer("How many?")["input_ids"]] * 48
    longer = {"ignore_eos": True, "max_tokens": 96}
    own = generation.generation_kwargs
    counts = {}
    for name, settings in (("ours", {**own, **longer, "stop_token_ids": []}), ("without", longer)):
        generation.generation_kwargs = settings
        _, sampled, _, _ = generation.generate(prompts, None, 1)
        tokens = [token for ids in sampled for token in ids]
        image, video = model.config.image_token_id, getattr(model.config, "video_token_id", None)
        counts[name] = {"tokens": len(tokens), "placeholders": sum(token in (image, video) for token in tokens)}
    generation.generation_kwargs = own
    return counts


def served_context(generation):
    """How many answers the longest prompt without images gets, and what we and the server say of a longer one."""
    client, longest = generation.vllm_client, generation.longest_prompt
    _, answers, _, _ = generation.generate([[7] * longest], None, 1)
    shown = {"context": generation.context, "longest": longest, "answers": len(answers)}
    longer = [[7] * (longest + 1)]
    with pytest.raises(ValueError, match="A prompt has") as error:
        generation.generate(longer, None, 1)
    shown["ours"] = str(error.value)
    try:
        until_cut = {"ignore_eos": True}
        answer = client.generate(longer, max_tokens=generation.max_completion_length, generation_kwargs=until_cut)
        shown["server's"] = f"{len(answer['completion_ids'][0])} tokens"
    except Exception as refusal:  # noqa: BLE001 - as TRL's client raises it
        shown["server's"] = str(refusal)
    shown["without key"] = requests.get(f"{client.base_url}/v1/models", timeout=60).status_code
    return shown


def sent_weights(generation):
    """Way of sending weights → digests of what the server then holds, and how many requests of weights it took."""
    client, shown = generation.vllm_client, {}

    def ask(method):
        answer = requests.post(f"{client.base_url}/collective_rpc", json={"method": method}, timeout=60)
        return answer.json()["results"][0] if method == "digests" else answer.raise_for_status()

    def weight_by_weight():
        with client.weight_update():
            for weight in generation._iter_named_params():
                client.update_named_param(*weight)

    for way in (weight_by_weight, generation.sync_weights):
        ask("zero")
        post = counted(client._post)
        with replaced(client, bucket=2**20, _post=post):
            way()
        shown[way.__name__] = {"weights": ask("digests"), "requests": post.urls.count("update_weights")}
    return shown


def counted(post):
    """A client's `_post` that remembers where it went."""

    def counting(url, **request):
        counting.urls.append(url.rpartition("/")[2])
        return post(url, **request)

    counting.urls = []
    return counting


def served_checks(trainer, family):
    """What test_vllm_server.py asserts beside the rollouts of the training run."""
    rows = next(iter(trainer.get_train_dataloader()))
    shown = {"after_upstream_sync": after_sync(trainer, rows, VLLMGeneration.sync_weights, seed=1)}
    shown |= {"after_own_sync": after_sync(trainer, rows, type(trainer.vllm_generation).sync_weights, seed=2)}
    processor = trainer.processing_class.image_processor
    size, processor.size = processor.size, {"shortest_edge": 28 * 28, "longest_edge": 2 * 28 * 28}
    try:
        trainer._generate_and_score_completions(rows)
    except PromptMismatch as error:
        shown |= {"other_limits": str(error)}
    finally:
        processor.size = size
    shown |= {"placeholders": placeholders_of_random_policy(trainer, family)}
    shown |= {"context": served_context(trainer.vllm_generation), "sent": sent_weights(trainer.vllm_generation)}
    client = trainer.vllm_generation.vllm_client
    client.base_url += "/elsewhere"  # a server that is no vLLM in development mode
    try:
        client.reset_encoder_cache()
    except RuntimeError as error:
        shown |= {"no_reset": str(error)}
    return shown
