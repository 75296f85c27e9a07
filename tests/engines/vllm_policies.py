"""What the scripts of the vLLM tests build: policies, rows, trainers, and what they keep of each rollout."""

from functools import partial
from pathlib import Path

import torch
from datasets import Dataset
from peft import LoraConfig
from PIL import Image
from several_turns import TURNS, AsksAgain, length_reward
from support import SMALL_RUN, ParityGrader, drawn_rows, images_shown, is_even, recorded_batches
from transformers import BitsAndBytesConfig

from trl_mmreason import (
    AdaPOConfig,
    AdaPOTrainer,
    ChainOfStepGRPOConfig,
    ChainOfStepGRPOTrainer,
    GroupGRPOTrainer,
    RolloutConfig,
    SelfEvolutionConfig,
    SelfEvolutionTrainer,
    SRPOConfig,
    SRPOTrainer,
)
from trl_mmreason.chain_of_step.tokens import add_chain_tokens
from trl_mmreason.compat.model_parts import placeholder_ids
from trl_mmreason.functional import turn_of_token
from trl_mmreason.generation.batch import collate
from trl_mmreason.grading import Verdict
from trl_mmreason.messages import question_text
from trl_mmreason.miniature.models import SIZES, Size, build_model
from trl_mmreason.sophia.config import MixedGroupsGRPOConfig
from trl_mmreason.sophia.grpo import MixedGroupsGRPOTrainer

LORA = {"r": 4, "lora_alpha": 32, "target_modules": "all-linear"}
RUN = {
    **SMALL_RUN,
    "use_cpu": not torch.cuda.is_available(),
    "per_device_train_batch_size": 12,
    "max_completion_length": 8,
    "max_steps": 4,  # rollouts before any update and after each of three
    "learning_rate": 1e-4,
    "top_p": 1.0,  # with less, vLLM's log-probabilities are those among the tokens that are left
    "use_vllm": True,
    "vllm_max_model_length": 1024,
}


SIZES["even"] = Size(hidden=256, layers=2, vision_hidden=128, vision_layers=2)  # two processes can share its heads


def random_policy(family, *, size="study", side_by_side=False):
    """A random model of a head dimension that vLLM takes, which ends about every fourth token with an end of turn.

    It knows the tokens of Chain-of-Step's template.

    Args:
        size: of `SIZES`.
        side_by_side: whether its template puts images directly beside each other.
    """
    model, processor = build_model(family, size)
    add_chain_tokens(model, processor)
    size = len(processor.tokenizer)
    model.generation_config.eos_token_id = [processor.tokenizer.eos_token_id, *range(size - size // 4, size)]
    if side_by_side:
        template = processor.chat_template
        assert "{{ '<image>\n' }}" in template
        processor.chat_template = template.replace("{{ '<image>\n' }}", "{{ '<image>' }}")
    return model, processor


@torch.no_grad()
def rule_out_placeholders(model):
    """Make the policy's own probability of a placeholder negligible, as in a trained model.

    Every token's embedding gets a first channel of 30, which no layer writes to, and which speaks against placeholders
    at the head. Sampling without them is then sampling from the policy, and the two log-probabilities are of one
    distribution.
    """
    model.get_input_embeddings().weight[:, 0] = 30.0
    for layer in model.model.language_model.layers:
        layer.self_attn.o_proj.weight[0] = 0.0
        layer.mlp.down_proj.weight[0] = 0.0
    head = model.get_output_embeddings().weight
    for token in placeholder_ids(model.config):
        head[token] = 0.0
        head[token, 0] = -20.0


def save(model, processor, folder):
    """Save a policy as users do; gives the folder."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def questions():
    """One question with an image, one with two inside its text, one without: every step asks all, so images return."""
    rows = drawn_rows(3)
    rows[1]["prompt"] = [{"role": "user", "content": f"Of <image> and <image>: {question_text(rows[1]['prompt'])}"}]
    return Dataset.from_list(rows)


def evenness(completions, **_):
    """Pays about half of all answers, whatever the method's own rewards say of a random model."""
    return [float(is_even(completion[-1]["content"])) for completion in completions]


def crop(side: int) -> list:
    """Show an image.

    Args:
        side: its width in pixels.
    """
    return [{"type": "image", "image": Image.new("RGB", (side, 56), "red")}, {"type": "text", "text": "Here."}]


def random_calls(tokenizer, ids, **_):
    """Read the even answers of a random policy, which cannot write calls, as calls."""
    text = tokenizer.decode(ids, skip_special_tokens=True)
    call = {"type": "function", "function": {"name": "crop", "arguments": {"side": 28 * (1 + len(ids) % 3)}}}
    return {"role": "assistant", "content": text, **({"tool_calls": [call]} if is_even(text) else {})}


class EveryOtherGrader:
    """Calls every other answer right, so that each group of SOPHIA's GRPO has right and wrong ones."""

    def grade_batch(self, items):
        return [Verdict(number % 2 == 0, None, "") for number, _ in enumerate(items)]


def trainer_for(
    method, policy, folder, *, lora=False, qlora=False, dropout=0.0, language=False, eval_dataset=None, **settings
):
    """A trainer of one of our methods that samples with vLLM.

    Args:
        policy: folder of a saved policy, or a model.
        eval_dataset: rows of evaluations.
        lora, qlora, dropout: whether it trains an adapter, of a base in 4 bit, and how much of its inputs it drops.
        language: whether the adapter leaves images' encoders as they are.
    """
    run = {**RUN, **settings}
    if qlora:
        quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
        run["model_init_kwargs"] = {"dtype": "float32", "quantization_config": quantization}
    narrow = {"exclude_modules": ".*(visual|vision|projector).*"} if language else {}
    if settings.get("vllm_lora"):  # factors of several ranks and scales
        narrow |= {"rank_pattern": {"q_proj": 2, "o_proj": 9}, "alpha_pattern": {"down_proj": 8}, "use_rslora": True}
    shared = {
        "train_dataset": questions(),
        "eval_dataset": eval_dataset,
        **({"peft_config": LoraConfig(**LORA, lora_dropout=dropout, **narrow)} if lora or qlora else {}),
    }
    if method == "adapo":
        # nothing is filtered out, so that every sampled token is compared
        args = AdaPOConfig(str(folder), **run, filter_zero_advantage=False, filter_truncated=False)
        return AdaPOTrainer(policy, args=args, grader=ParityGrader(), **shared)
    if method == "sophia":
        args = MixedGroupsGRPOConfig(str(folder), **run, beta=0.001)
        return MixedGroupsGRPOTrainer(policy, args=args, grader=EveryOtherGrader(), **shared)
    if method == "turns":
        args = RolloutConfig(str(folder), **run, beta=0.001)
        return AsksAgain(policy, length_reward, args, max_turns=TURNS, **shared)
    if method == "tools":
        run |= {"max_completion_length": 48, "max_tool_calling_iterations": 2}  # what tools return counts
        args = RolloutConfig(str(folder), **run, beta=0.001)
        trainer = GroupGRPOTrainer(policy, evenness, args, followup="Sure?", tools=[crop], **shared)
        trainer._tokenizer.parse_response = partial(random_calls, trainer._tokenizer)
        return trainer
    shared["reward_funcs"] = evenness
    if method == "srpo":
        args = SRPOConfig(str(folder), **run, reflection_prompt=None, filter_min_accuracy=0.0)
        return SRPOTrainer(policy, args=args, **shared)
    if method == "chain_of_step":
        args = ChainOfStepGRPOConfig(str(folder), **run, beta=0.001)
        return ChainOfStepGRPOTrainer(policy, None, args=args, **shared)
    args = SelfEvolutionConfig(str(folder), **run, judge_prompt="Judge.", judge_max_tokens=8, actor_prompt=None)
    return SelfEvolutionTrainer(policy, args=args, **shared)


def train(trainer):
    """Train, and give the tensors of every rollout: what vLLM says of its samples, and what the training pass says."""
    batches = recorded_batches(trainer)
    trainer.train()
    return [rollout_of(batch) for batch in batches]


def rollout_of(batch):
    """One batch's log-probabilities of sampled tokens, and where they stand.

    Returns:
        `sampled`, `trained` and `initial`: (B, T) log-probabilities by vLLM, the training pass and the first policy;
        `mask`: (B, T) True where a token was sampled; `turn`: (B, T), from 1; `images`: (B,) how many each row has.
    """
    tool_mask = batch["tool_mask"]
    mask = batch["completion_mask"].bool() & tool_mask.bool()
    turn = turn_of_token(tool_mask)
    return {
        "sampled": batch["sampling_per_token_logps"],
        "trained": batch["old_per_token_logps"],
        "initial": batch["ref_per_token_logps"],
        "mask": mask,
        "turn": turn,
        "pictures": torch.tensor(images_shown(batch)),
        "completion_ids": batch["completion_ids"],
        "prompt_ids": batch["prompt_ids"],
        "prompt_mask": batch["prompt_mask"],
    }


@torch.no_grad()
def scored(model, trajectory):
    """Log-probabilities of all tokens behind the prompt, by the model itself."""
    context = trajectory.context
    logits = model.eval()(**collate([context], 0)).logits[0, :-1].log_softmax(-1)
    logps = logits.gather(1, torch.tensor(context.ids[1:])[:, None])[:, 0]
    model.train()
    return logps[len(trajectory.prompt.ids) - 1 :]


def write(file, **values):
    """Keep what the test asserts."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    torch.save(values, file)
