"""Greedy two-turn rollouts of a colocated trainer: request by request, and turn after turn."""

from contextlib import contextmanager

import torch
from support import drawn_rows
from trl.data_utils import prepare_multimodal_messages

from trl_mmreason.compat.replaced import replaced
from trl_mmreason.training.rollout import begin, log_turns, turn_after_turn

QUESTIONS, GENERATIONS = 12, 2  # twice as many rows as the engine takes at once
# A random policy repeats itself until it is cut; with the penalty greedy answers end, too.
GREEDY = {"temperature": 0.0, "repetition_penalty": 2.0}


def two_ways(trainer, bound):
    """Both rollouts of the same prompts by the same weights, what the engine did, and the logged hit rate.

    Args:
        bound: tokens that an answer may have.
    """
    seed = 1 + trainer.accelerator.process_index
    rows = [row for row in drawn_rows(QUESTIONS, seed=seed) for _ in range(GENERATIONS)]
    prompts = [prepare_multimodal_messages(row["prompt"], images=row["images"]) for row in rows]
    generation = trainer.vllm_generation
    found = {
        "pictures": [len(row["images"]) for row in rows],
        "different_pictures": len({image.tobytes() for row in rows for image in row["images"]}),
        "followup": trainer._followup_ids,
        "block": generation.llm.llm_engine.vllm_config.cache_config.block_size,
    }
    trainer.model.train()
    # forked: what is sampled in training stays what it would be without this
    with (
        torch.random.fork_rng(),
        replaced(generation, max_completion_length=bound, **GREEDY),
        replaced(trainer, _sampled=list(enumerate(rows))),
    ):
        generation.sync_weights()
        with (
            watched(generation.llm) as found["engine_without_barrier"],
            told_answers(trainer, rows, found["engine_without_barrier"]["events"]) as found["told"],
        ):
            rollout = trainer.rollout_func(prompts, trainer)
        trajectories = trainer.trajectories
        generation.sync_weights()  # drops what is cached
        with watched(generation.llm) as found["engine_turn_after_turn"]:
            turn_after_turn(trainer, *begin(trainer, prompts))
            found["turn_after_turn"] = parts_of(trainer.trajectories)
        trainer.trajectories = trajectories  # as the first rollout left them
    found["without_barrier"] = parts_of(trajectories)
    found["prompts"] = rollout["prompt_ids"]
    found["answers"] = [(row, text) for row, trajectory in enumerate(trajectories) for text in trajectory.answers]
    found["hit_rates"] = trainer._metrics["train"].pop("prefix_cache_hit_rate_t2", [])
    return found


def short_of_room(trainer, ways):
    """What `two_ways` gives, and what is logged, in a context that holds about half of the second prompts.

    Args:
        ways: what `two_ways(trainer, 16)` gave.
    """
    rows = zip(ways["prompts"], ways["without_barrier"][1], strict=True)
    seconds = [len(prompt) + mask.index(0) + len(ways["followup"]) for prompt, mask in rows if 0 in mask]
    context = sorted(seconds)[len(seconds) // 2] + 2
    generation = trainer.vllm_generation
    engine = generation.llm.llm_engine
    with (
        replaced(engine.model_config, max_model_len=context),  # by which prompts are refused
        replaced(engine.engine_core.engine_core.scheduler, max_model_len=context),  # and by which answers end
        replaced(generation, context=context, longest_prompt=context - 1),
    ):
        again = two_ways(trainer, 16)
        log_turns(trainer)
        try:
            generation.generate([[7] * context], None, 1)
        except ValueError as error:
            refused = str(error)
    logged = trainer._metrics["train"]
    again |= {"context": context, "refused": refused, "no_room": logged.pop("no_room_t2")}
    for name in ("length_t1", "length_t2"):
        logged.pop(name, None)
    return again


def parts_of(trajectories):
    """Of each: its tokens after the prompt, 1 for each that was sampled, log-probabilities."""
    return tuple([getattr(each, name) for each in trajectories] for name in ("completion_ids", "env_mask", "logprobs"))


@contextmanager
def told_answers(trainer, rows, events):
    """Gives row and text of each answer that graders are handed, which is among the engine's events, too."""
    told = []

    def record(answered, texts):
        told.extend(zip(answered, texts, strict=True))
        events.append(("told", None))

    with replaced(trainer, answers_ended=record):
        yield told


@contextmanager
def sampled_tokens(engine):
    """Gives the tokens of every answer, in the order in which they ended."""
    step, tokens = engine.step, []

    def record_step():
        outputs = step()
        tokens.extend(list(output.outputs[0].token_ids) for output in outputs if output.finished)
        return outputs

    with replaced(engine, step=record_step):
        yield tokens


@contextmanager
def watched(llm):
    """Gives the order in which requests began and ended, and how many images were encoded."""
    engine, model = llm.llm_engine, llm.llm_engine.model_executor.driver_worker.model_runner.model
    add, step, embed = engine.add_request, engine.step, model.embed_multimodal
    seen = {"events": [], "encoded": 0}

    def record_add(request_id, *args, **kwargs):
        seen["events"].append(("begins", request_id))
        return add(request_id, *args, **kwargs)

    def record_step():
        outputs = step()
        seen["events"] += [("ends", output.request_id) for output in outputs if output.finished]
        return outputs

    def record_embed(**images):
        features = embed(**images)
        seen["encoded"] += len(features)
        return features

    with replaced(engine, add_request=record_add, step=record_step), replaced(model, embed_multimodal=record_embed):
        yield seen
