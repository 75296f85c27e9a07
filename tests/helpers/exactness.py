"""How far log-probabilities and answers of trainers and engines are from those of a plain model that sees one row."""

import torch
from support import logps_of, prepared_batch
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor

from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.data.images import images_of
from trl_mmreason.generation.batch import collate, encode
from trl_mmreason.generation.engine import Request, SamplingParams
from trl_mmreason.generation.model_loading import sees_images
from trl_mmreason.generation.transformers_engine import TransformersEngine
from trl_mmreason.messages import question_text


class Plain:
    """A checkpoint as transformers loads it, without anything of ours."""

    def __init__(self, folder, config):
        self._class = AutoModelForImageTextToText if sees_images(config) else AutoModelForCausalLM
        self.model, self.processor = self.loaded(folder).eval(), AutoProcessor.from_pretrained(folder)

    def loaded(self, folder):
        """Another checkpoint of this class."""
        return self._class.from_pretrained(folder, dtype=torch.float32)

    @torch.no_grad()
    def logps(self, prompt, ids, temperature=1.0):
        """(T,) log-probabilities of the tokens behind a prompt, without padding."""
        logits = self.model(**collate([prompt.extended(ids)], 0)).logits[0, len(prompt.ids) - 1 : -1]
        logps = (logits.float() / temperature).log_softmax(-1)
        return logps.gather(1, torch.tensor(ids)[:, None])[:, 0]

    @torch.no_grad()
    def answer(self, prompt, tokens):
        """The ids that `generate` answers with, greedily, and their log-probabilities."""
        kept = placeholder_ids(self.model.config) or None
        settings = {"do_sample": False, "max_new_tokens": tokens, "suppress_tokens": kept}
        settings |= {"output_logits": True, "return_dict_in_generate": True}
        found = self.model.generate(**collate([prompt], 0), **settings)
        ids = found.sequences[0, len(prompt.ids) :]
        if not found.logits:  # Janus has a `generate` of its own
            return ids.tolist(), self.logps(prompt, ids.tolist())
        logps = torch.stack(found.logits, dim=1)[0].float().log_softmax(-1)
        return ids.tolist(), logps.gather(1, ids[:, None])[:, 0]


def rollout_difference(trainer, plain):
    """Largest difference in nats of sampled and of scored tokens, in groups with one image, two images or none."""
    rows = [dict(trainer.train_dataset[number]) for number in (0, 1, 2) for _ in range(4)]
    assert len({len(images_of(row)) for row in rows}) == (1 if trainer.processing_class is trainer._tokenizer else 3)
    batch = prepared_batch(trainer, rows)
    scores, sampled, worst = logps_of(trainer, batch), batch.get("sampling_per_token_logps"), 0.0
    for place, each in enumerate(trainer.trajectories):
        prompt, mask = len(each.prompt.ids), torch.tensor(each.env_mask).bool()
        whole = each.context
        with torch.no_grad():
            logits = plain.model(**collate([whole], 0)).logits[0, :-1].float() / trainer.temperature
        expected = logits.log_softmax(-1).gather(1, torch.tensor(whole.ids[1:])[:, None])[prompt - 1 :, 0]
        for found in (scores, sampled):
            if found is not None:
                worst = max(worst, (found[place, : len(expected)] - expected)[mask].abs().max().item())
    return worst


def supervised_difference(trainer, plain, rows):
    """The same of a batch that a supervised trainer collates, of the tokens that are learnt."""
    batch = dict(trainer._prepare_inputs(trainer.data_collator(rows)))
    if "completion_mask" in batch:  # of DPO: chosen, then rejected
        batch["labels"] = batch["input_ids"].masked_fill(batch.pop("completion_mask") == 0, -100)
        rows = [*rows, *rows]
    prompts = [encode(plain.processor, row["prompt"], images_of(row)) for row in rows]
    names = {"input_ids", "attention_mask", "labels"}.union(
        *(each.token_fields | each.image_fields for each in prompts)
    )
    labels, worst = batch["labels"], 0.0
    with torch.no_grad():
        inputs = {name: batch[name] for name in names if name in batch}
        found = trainer.model(**inputs, fused_lm_head=True).log_probs
    for place, prompt in enumerate(prompts):
        learnt = labels[place, 1:] != -100
        ids = labels[place, 1:][learnt].tolist()
        assert batch["input_ids"][place][batch["attention_mask"][place].bool()].tolist() == [*prompt.ids, *ids]
        worst = max(worst, (found[place][learnt] - plain.logps(prompt, ids)).abs().max().item())
    return worst


def answers_differ(folder, plain, rows, batch_size):
    """How many greedy answers of the engine in this process are not those of `generate`, as it says or as it scores."""
    engine = TransformersEngine(folder, dtype=torch.float32, device="cpu", batch_size=batch_size)
    asked = [Request([{"role": "user", "content": question_text(row["prompt"])}], images_of(row)) for row in rows]
    answers, wrong = engine.sample(asked, SamplingParams(8, temperature=0, logprobs=True)), 0
    for each, (answer, *_) in zip(asked, answers, strict=True):
        ids, logps = plain.answer(encode(plain.processor, each.messages, each.images), 8)
        wrong += ids != list(answer.token_ids) or (torch.tensor(answer.logprobs) - logps).abs().max().item() > 1e-3
    return wrong
