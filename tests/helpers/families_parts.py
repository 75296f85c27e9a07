"""What the builders of tiny models share: tokenizers, each trained once, and parts of vision encoders."""

from copy import deepcopy
from functools import cache

from further_families import COHERE, PATCH, SIDE, tokenizer_with, video_processor
from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from trl_mmreason.miniature.models import _INTERNVL_TEMPLATE, CHATML

MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
EXPERTS = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
PIXELS = {"shortest_edge": (2 * PATCH) ** 2, "longest_edge": (8 * PATCH) ** 2}
GLM = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m['role'] }}|>\n{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for p in m['content'] %}{% if p['type'] == 'image' %}<|begin_of_image|><|image|><|end_of_image|>"
    "{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST]{% endif %}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}[IMG]{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if m['role'] == 'user' %}[/INST]{% else %}{{ eos_token }}{% endif %}{% endfor %}"
)


@cache
def _trained(special, named):
    return tokenizer_with(special, None, **dict(named))


def tokenizer_of(template, *special, **named):
    """A tokenizer of its own with these tokens; what is trained is trained once."""
    named = {"pad_token": "<pad>", **named}
    special = [token for token in dict.fromkeys(special) if token not in named.values()]
    tokenizer = deepcopy(_trained(tuple(special), tuple(named.items())))
    tokenizer.chat_template = template
    return tokenizer


def chatml_tokenizer(image="<image>", template=None):
    """A tokenizer of turns in ChatML that knows the names of tokens by which most processors ask.

    Args:
        image: what the template writes for an image.
        template: another template, of Qwen's tokens.
    """
    named = {"image_token": "<image>", "video_token": "<video>", "audio_token": "<audio>"}
    ends = {"boi": "<vision>", "eoi": "</vision>", "image_start": "<vision>", "image_end": "</vision>"}
    ends |= {"vision_bos": "<vision>", "vision_eos": "</vision>", "audio_bos": "<sound>", "audio_eos": "</sound>"}
    ends |= {"slice_start": "<slice>", "slice_end": "</slice>", "image_id_start": "<id>", "image_id_end": "</id>"}
    ends |= {"video_start": "<film>", "video_end": "</film>", "image_break": "<line>", "image_boundary": "<fake>"}
    named |= {f"{name}_token": token for name, token in ends.items()}
    if template is not None:
        named = {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"}
    special = ["<|im_start|>", "<|vision_start|>", "<|vision_end|>"]
    template = template or _INTERNVL_TEMPLATE.replace("<IMG_CONTEXT>\n", image)
    return tokenizer_of(template, *special, **CHATML, **named)


def glm_tokenizer():
    """A tokenizer whose answers end with the token that begins a user's turn, as GLM's do."""
    special = [f"<|{name}|>" for name in "assistant system begin_of_image end_of_image begin_of_video".split()]
    special += ["<|end_of_video|>", "[gMASK]", "<sop>"]
    return tokenizer_of(GLM, *special, eos_token="<|user|>", image_token="<|image|>", video_token="<|video|>")


def mistral_tokenizer():
    named = {"bos_token": "<s>", "eos_token": "</s>", "image_token": "[IMG]"}
    named |= {"image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
    return tokenizer_of(MISTRAL, "[INST]", "[/INST]", **named)


def cohere_tokenizer():
    special = ["<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>"]
    named = {"eos_token": "<|END_OF_TURN_TOKEN|>", "image_token": "<|IMG_PATCH|>", "boi_token": "<|START_OF_IMG|>"}
    named |= {"eoi_token": "<|END_OF_IMG|>", "img_line_break_token": "<|IMG_LINE_BREAK|>"}
    return tokenizer_of(COHERE.replace("<image>", "<|IMG_PATCH|>"), *special, "<|END_RESPONSE|>", **named)


def grid_vision(**more):
    """Of a vision encoder that is told each image's grid of patches."""
    sizes = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": PATCH}
    return {**sizes, "out_hidden_size": 64, "initializer_range": 0.1, **more}


def grid_processor(kind, tokenizer, video, images=Qwen2VLImageProcessorPil, pixels=PIXELS, **more):
    """A processor that returns each image's grid of patches."""
    images = images(patch_size=PATCH, merge_size=2, size=pixels)
    template = tokenizer.chat_template
    return kind(
        image_processor=images,
        tokenizer=tokenizer,
        video_processor=video_processor(video, merge_size=2),
        chat_template=template,
        **more,
    )


def pixtral_vision():
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    return {"model_type": "pixtral", **sizes, "head_dim": 16, "image_size": 2 * SIDE, "patch_size": PATCH}


def pixtral_images(patch):
    return PixtralImageProcessorPil(size={"longest_edge": 2 * SIDE}, patch_size={"height": patch, "width": patch})
