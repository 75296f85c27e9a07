"""Tiny random models that see an image in tiles, as many as its shape asks for."""

from families_grids import LINEAR
from families_parts import chatml_tokenizer, cohere_tokenizer, tokenizer_of, video_processor
from further_families import PATCH, SIDE, idefics3, text_of, vision_of
from transformers import (
    Cohere2VisionConfig,
    Cohere2VisionForConditionalGeneration,
    Cohere2VisionProcessor,
    Idefics2Config,
    Idefics2ForConditionalGeneration,
    Idefics2Processor,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionProcessor,
    MiniCPMV4_6Config,
    MiniCPMV4_6ForConditionalGeneration,
    MiniCPMV4_6Processor,
    Ovis2Config,
    Ovis2ForConditionalGeneration,
    Ovis2Processor,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics2.image_processing_pil_idefics2 import Idefics2ImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil
from transformers.models.ovis2.image_processing_pil_ovis2 import Ovis2ImageProcessorPil

from trl_mmreason.miniature.models import _INTERNVL_TEMPLATE, CHATML

SQUARE = {"height": SIDE, "width": SIDE}


def cohere2_vision():
    """A model that leaves `logit_scale` out; its images are read as GOT-OCR's, as its own need torchvision."""
    tokenizer = cohere_tokenizer()
    layers = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 24, "logit_scale": 0.25}
    config = Cohere2VisionConfig(
        text_config={"model_type": "cohere2", **text_of(tokenizer, **layers)},
        vision_config={"model_type": "siglip_vision_model", **vision_of(vision_use_head=False)},
        image_token_id=tokenizer.image_token_id,
        downsample_factor=2,
        alignment_intermediate_size=64,
    )
    images = GotOcr2ImageProcessorPil(size=SQUARE, crop_to_patches=True, max_patches=4)
    images.patch_size = 2  # tokens, the side of what is left of a tile
    processor = Cohere2VisionProcessor(
        image_processor=images, tokenizer=tokenizer, chat_template=tokenizer.chat_template
    )
    return Cohere2VisionForConditionalGeneration(config), processor


def idefics2():
    """A model that resamples images, with a mask of their pixels, as many images for each row as the largest has."""
    tokenizer = chatml_tokenizer()
    resampler = {"hidden_size": 64, "resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 2}
    config = Idefics2Config(
        text_config={"model_type": "mistral", **text_of(tokenizer, sliding_window=None)},
        vision_config=vision_of(num_hidden_layers=2, initializer_range=0.1),
        perceiver_config={**resampler, "resampler_head_dim": 16, "num_key_value_heads": 1, "initializer_range": 0.1},
        image_token_id=tokenizer.image_token_id,
    )
    processor = Idefics2Processor(
        image_processor=Idefics2ImageProcessorPil(size={"shortest_edge": SIDE // 2, "longest_edge": SIDE}),
        tokenizer=tokenizer,
        image_seq_len=4,
        chat_template=tokenizer.chat_template,
    )
    return Idefics2ForConditionalGeneration(config), processor


def llava_onevision():
    """A model whose images have as many tiles as the largest, and their sizes and numbers beside them."""
    tokenizer = chatml_tokenizer()
    pinpoints = [[SIDE, SIDE], [SIDE, 2 * SIDE], [2 * SIDE, SIDE], [2 * SIDE, 2 * SIDE]]
    config = LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **text_of(tokenizer)},
        vision_config={"model_type": "siglip_vision_model", **vision_of(vision_use_head=False)},
        image_token_index=tokenizer.image_token_id,
        video_token_index=tokenizer.video_token_id,
        image_grid_pinpoints=pinpoints,
    )
    processor = LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessorPil(size=SQUARE, image_grid_pinpoints=pinpoints),
        tokenizer=tokenizer,
        video_processor=video_processor("LlavaOnevisionVideoProcessor"),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    )
    return LlavaOnevisionForConditionalGeneration(config), processor


def minicpmv4_6():
    """A model with linear attention, whose images lie side by side in one, with their sizes in a field of their own."""
    tokenizer = chatml_tokenizer()
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("image", "video")}
    config = MiniCPMV4_6Config(
        text_config={"model_type": "qwen3_5_text", **text_of(tokenizer, **LINEAR)},
        vision_config=vision_of(num_hidden_layers=2, insert_layer_id=0),
        insert_layer_id=0,
        image_size=SIDE,
        **ids,
    )
    settings = {"slice_mode": False, "downsample_mode": "16x", "use_image_id": True}
    video = video_processor("MiniCPMV4_6VideoProcessor", **settings)
    processor = MiniCPMV4_6Processor(
        image_processor=MiniCPMV4_6ImageProcessorPil(scale_resolution=2 * SIDE, patch_size=PATCH, max_slice_nums=4),
        video_processor=video,
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )
    return MiniCPMV4_6ForConditionalGeneration(config), processor


def ovis2():
    """A model whose images are mixtures of a vocabulary of their own, between tokens that the model replaces."""
    marks = ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"]
    template = _INTERNVL_TEMPLATE.replace("<IMG_CONTEXT>\n", "<image>")
    tokenizer = tokenizer_of(template, "<|im_start|>", "<image>", *marks, **CHATML, image_token="<IMG_ATOM>")
    config = Ovis2Config(
        text_config={"model_type": "qwen2", **text_of(tokenizer)},
        vision_config=vision_of(num_hidden_layers=2, vocab_size=32, hidden_stride=2),
        image_token_id=tokenizer.image_token_id,
        visual_indicator_token_ids=tokenizer.convert_tokens_to_ids(marks),
        vocab_size=len(tokenizer),
        hidden_size=64,
    )
    processor = Ovis2Processor(
        image_processor=Ovis2ImageProcessorPil(size=SQUARE, crop_to_patches=True, max_patches=4),
        tokenizer=tokenizer,
        chat_template=template,
        image_token="<image>",
        image_seq_length=4,
    )
    return Ovis2ForConditionalGeneration(config), processor


def smolvlm():
    """An Idefics3 under another name; its images are read as Idefics3's, as its own processor needs num2words."""
    _, processor = idefics3()
    tokenizer = processor.tokenizer
    config = SmolVLMConfig(
        text_config={"model_type": "llama", **text_of(tokenizer)},
        vision_config=vision_of(),
        image_token_id=tokenizer.image_token_id,
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
    )
    return SmolVLMForConditionalGeneration(config), processor
