"""Tiny random models whose processor returns each image's grid of patches, as Qwen-VL's does."""

from families_parts import (
    EXPERTS,
    MROPE,
    PIXELS,
    chatml_tokenizer,
    glm_tokenizer,
    grid_processor,
    grid_vision,
    video_processor,
)
from further_families import PATCH, SIDE, text_of, vision_of
from transformers import (
    Ernie4_5_VLMoeConfig,
    Ernie4_5_VLMoeForConditionalGeneration,
    Ernie4_5_VLMoeProcessor,
    Exaone4_5_Config,
    Exaone4_5_ForConditionalGeneration,
    Exaone4_5_Processor,
    Glm4vConfig,
    Glm4vForConditionalGeneration,
    Glm4vProcessor,
    Glm5NextConfig,
    Glm5NextForConditionalGeneration,
    Glm5NextProcessor,
    Glm46VConfig,
    Glm46VForConditionalGeneration,
    Glm46VProcessor,
    GlmOcrConfig,
    GlmOcrForConditionalGeneration,
    HunYuanVLConfig,
    HunYuanVLForConditionalGeneration,
    HunYuanVLProcessor,
    Kimi_K25Config,
    Kimi_K25ForConditionalGeneration,
    Kimi_K25Processor,
    PaddleOCRVLConfig,
    PaddleOCRVLForConditionalGeneration,
    PaddleOCRVLProcessor,
    Qwen2_5OmniProcessor,
    Qwen2_5OmniThinkerConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    Qwen3VLProcessor,
    VideoLlama3Config,
    VideoLlama3ForConditionalGeneration,
    VideoLlama3Processor,
    WhisperFeatureExtractor,
)
from transformers.models.ernie4_5_vl_moe.image_processing_pil_ernie4_5_vl_moe import Ernie4_5_VLMoeImageProcessorPil
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.glm5_next.image_processing_pil_glm5_next import Glm5NextImageProcessorPil
from transformers.models.glm46v.image_processing_pil_glm46v import Glm46VImageProcessorPil
from transformers.models.hunyuan_vl.image_processing_pil_hunyuan_vl import HunYuanVLImageProcessorPil
from transformers.models.paddleocr_vl.image_processing_pil_paddleocr_vl import PaddleOCRVLImageProcessorPil
from transformers.models.video_llama_3.image_processing_pil_video_llama_3 import VideoLlama3ImageProcessorPil

from trl_mmreason.miniature.models import _qwen_vision_ids, _trl_template

INTERLEAVED = {**MROPE, "mrope_interleaved": True}
LINEAR = {"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2}
LINEAR |= {"linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"], "head_dim": 16}
LINEAR |= {"rope_parameters": {**INTERLEAVED, "partial_rotary_factor": 1.0}}


def qwen3_5():
    """A model whose linear attention carries a state over padding too, unless it is masked."""
    tokenizer = chatml_tokenizer(template=_trl_template("qwen3_5_nothink"))
    config = Qwen3_5Config(
        text_config=text_of(tokenizer, **LINEAR),
        vision_config=grid_vision(num_position_embeddings=64),
        **_qwen_vision_ids(tokenizer),
    )
    processor = grid_processor(Qwen3VLProcessor, tokenizer, "Qwen3VLVideoProcessor")
    return Qwen3_5ForConditionalGeneration(config), processor


def qwen3_vl_moe():
    """A mixture of experts whose first layers are given features of the image once more."""
    tokenizer = chatml_tokenizer(template=_trl_template("qwen3_vl"))
    config = Qwen3VLMoeConfig(
        text_config=text_of(tokenizer, head_dim=16, rope_parameters=INTERLEAVED, num_experts=4, **EXPERTS),
        vision_config=grid_vision(num_position_embeddings=64, deepstack_visual_indexes=[0]),
        **_qwen_vision_ids(tokenizer),
    )
    processor = grid_processor(Qwen3VLProcessor, tokenizer, "Qwen3VLVideoProcessor")
    return Qwen3VLMoeForConditionalGeneration(config), processor


def qwen2_5_omni_thinker():
    """A model that also hears, with an encoder of sound that a row of images and text leaves unused."""
    tokenizer = chatml_tokenizer("<vision><image></vision>")
    audio = {"num_mel_bins": 80, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 64}
    audio |= {"d_model": 32, "output_dim": 64, "max_source_positions": 16}
    config = Qwen2_5OmniThinkerConfig(
        text_config=text_of(tokenizer, rope_parameters=MROPE),
        vision_config=grid_vision(window_size=8 * PATCH, fullatt_block_indexes=[0]),
        audio_config=audio,
        initializer_range=0.1,
        **{f"{kind}_token_index": getattr(tokenizer, f"{kind}_token_id") for kind in ("image", "video", "audio")},
        audio_start_token_id=tokenizer.audio_bos_token_id,
        audio_end_token_id=tokenizer.audio_eos_token_id,
        vision_start_token_id=tokenizer.vision_bos_token_id,
        vision_end_token_id=tokenizer.vision_eos_token_id,
    )
    heard = {"feature_extractor": WhisperFeatureExtractor()}
    processor = grid_processor(Qwen2_5OmniProcessor, tokenizer, "Qwen2VLVideoProcessor", **heard)
    return Qwen2_5OmniThinkerForConditionalGeneration(config), processor


def video_llama_3():
    """A model whose inner model alone names the fields that it reads images from."""
    tokenizer = chatml_tokenizer()
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = VideoLlama3Config(
        text_config={"model_type": "qwen2", **text_of(tokenizer)},
        vision_config={**vision, "patch_size": PATCH, "initializer_range": 0.1},
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
    )

    def images(patch_size, merge_size, size):
        return VideoLlama3ImageProcessorPil(patch_size=patch_size, merge_size=merge_size, size=size)

    processor = grid_processor(VideoLlama3Processor, tokenizer, "VideoLlama3VideoProcessor", images)
    return VideoLlama3ForConditionalGeneration(config), processor


def exaone4_5():
    """A model whose windows of attention are shorter than its prompts."""
    tokenizer = chatml_tokenizer("<vision><image></vision>")
    windows = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    config = Exaone4_5_Config(
        text_config={"model_type": "exaone4", **text_of(tokenizer, **windows)},
        vision_config=grid_vision(num_key_value_heads=2, window_size=4 * PATCH, fullatt_block_indexes=[0]),
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
    )
    processor = grid_processor(Exaone4_5_Processor, tokenizer, "Qwen2VLVideoProcessor")
    return Exaone4_5_ForConditionalGeneration(config), processor


def _glm(config, model, kind, images, video, vision=None, **text):
    tokenizer = glm_tokenizer()
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("image", "video")}
    for name in ("image", "video"):
        ids[f"{name}_start_token_id"] = tokenizer.convert_tokens_to_ids(f"<|begin_of_{name}|>")
        ids[f"{name}_end_token_id"] = tokenizer.convert_tokens_to_ids(f"<|end_of_{name}|>")
    made = config(
        text_config=text_of(tokenizer, **text), vision_config=grid_vision(image_size=SIDE, **(vision or {})), **ids
    )
    doubled = {name: 2 * number for name, number in PIXELS.items()}  # an image counts as two frames
    return model(made), grid_processor(kind, tokenizer, video, images, doubled)


GLM_ROPE = {"rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}}


def glm4v():
    """A model whose answers end with the token that begins the next turn."""
    parts = (Glm4vConfig, Glm4vForConditionalGeneration, Glm4vProcessor, Glm4vImageProcessorPil)
    return _glm(*parts, "Glm4vVideoProcessor", **GLM_ROPE)


def glm46v():
    """GLM-4V under another configuration, which names the language model's own."""
    parts = (Glm46VConfig, Glm46VForConditionalGeneration, Glm46VProcessor, Glm46VImageProcessorPil)
    return _glm(*parts, "Glm46VVideoProcessor", {"model_type": "glm4v_vision"}, model_type="glm4v_text", **GLM_ROPE)


def glm_ocr():
    """A GLM that has no processor of its own but GLM-4.6V's."""
    parts = (GlmOcrConfig, GlmOcrForConditionalGeneration, Glm46VProcessor, Glm46VImageProcessorPil)
    return _glm(*parts, "Glm46VVideoProcessor", head_dim=16, **GLM_ROPE)


def glm5_next():
    """A mixture of experts with linear, sparse and latent attention, and several streams between its layers."""
    latent = {"kv_lora_rank": 16, "q_lora_rank": 16, "v_head_dim": 16, "qk_nope_head_dim": 16}
    sparse = {"index_topk": 64, "index_head_dim": 16, "index_n_heads": 2, "index_kpool": 2}
    linear = {"linear_head_dim": 16, "linear_num_heads": 4, "hc_mult": 2}
    sizes = {"num_hidden_layers": 4, "num_key_value_heads": 4, "n_routed_experts": 2, "n_shared_experts": 1}
    parts = (Glm5NextConfig, Glm5NextForConditionalGeneration, Glm5NextProcessor, Glm5NextImageProcessorPil)
    text = {**latent, **sparse, **linear, **sizes, **EXPERTS, "intermediate_size": 64, "moe_intermediate_size": 16}
    return _glm(*parts, "Glm5NextVideoProcessor", {"projection_intermediate_size": 64}, **text)


def kimi_k25():
    """A mixture of experts with latent attention; its images are read as PaddleOCR's, as its own need torchvision."""
    tokenizer = chatml_tokenizer("<vision><image></vision>")
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
    sizes = {"model_type": "deepseek_v3", "num_key_value_heads": 4}
    config = Kimi_K25Config(
        text_config=text_of(tokenizer, **sizes, **latent, **experts, **EXPERTS),
        vision_config=vision_of(num_hidden_layers=2, pos_emb_height=8, pos_emb_width=8),
        projection_hidden_size=32,
        **{f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("image", "video")},
        vision_start_token_id=tokenizer.vision_bos_token_id,
        vision_end_token_id=tokenizer.vision_eos_token_id,
    )
    images = PaddleOCRVLImageProcessorPil
    processor = grid_processor(Kimi_K25Processor, tokenizer, "Kimi_K25VideoProcessor", images)
    return Kimi_K25ForConditionalGeneration(config), processor


def ernie4_5_vl_moe():
    """A mixture of experts, some for images alone, with a second field that says which tokens are an image's."""
    tokenizer = chatml_tokenizer("<vision><image></vision>")
    experts = {"moe_intermediate_size": [32, 16], "moe_k": 2, "moe_num_experts": 4, "moe_num_shared_experts": 1}
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("image", "video")}
    for name in ("image_start", "image_end", "video_start", "video_end"):
        ids[f"{name}_token_id"] = getattr(tokenizer, f"{name}_token_id")
    config = Ernie4_5_VLMoeConfig(
        text_config=text_of(tokenizer, rope_parameters={**MROPE, "mrope_section": [3, 3, 2]}, **experts),
        vision_config=grid_vision(),
        **ids,
    )
    processor = Ernie4_5_VLMoeProcessor(
        image_processor=Ernie4_5_VLMoeImageProcessorPil(patch_size=PATCH, size=PIXELS),
        tokenizer=tokenizer,
        video_processor=video_processor("Ernie4_5_VLMoeVideoProcessor", font=""),
        chat_template=tokenizer.chat_template,
    )
    return Ernie4_5_VLMoeForConditionalGeneration(config), processor


def paddleocr_vl():
    """A reader of documents that knows no videos, with positions in three dimensions."""
    tokenizer = chatml_tokenizer("<vision><image></vision>")
    config = PaddleOCRVLConfig(
        text_config=text_of(tokenizer, head_dim=16, rope_parameters=MROPE),
        vision_config=vision_of(num_hidden_layers=2),
        image_token_id=tokenizer.image_token_id,
        video_token_id=tokenizer.video_token_id,
        vision_start_token_id=tokenizer.boi_token_id,
        vision_end_token_id=tokenizer.eoi_token_id,
    )
    processor = PaddleOCRVLProcessor(
        image_processor=PaddleOCRVLImageProcessorPil(patch_size=PATCH, size=PIXELS),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )
    return PaddleOCRVLForConditionalGeneration(config), processor


def hunyuan_vl():
    """A model whose positions count the images of the whole batch, with a processor that pads by itself."""
    tokenizer = chatml_tokenizer("<vision><image></vision>")
    rope = {**MROPE, "mrope_section": [2, 2, 2, 2]}
    vision = vision_of(num_hidden_layers=2, out_hidden_size=64, max_image_size=8 * PATCH, min_image_size=2 * PATCH)
    config = HunYuanVLConfig(
        text_config=text_of(tokenizer, head_dim=16, rope_parameters=rope),
        vision_config=vision,
        image_token_id=tokenizer.image_token_id,
        im_start_id=tokenizer.image_start_token_id,
        im_end_id=tokenizer.image_end_token_id,
        im_newline_id=tokenizer.image_break_token_id,
    )
    processor = HunYuanVLProcessor(
        image_processor=HunYuanVLImageProcessorPil(patch_size=PATCH, size=PIXELS),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )
    return HunYuanVLForConditionalGeneration(config), processor
