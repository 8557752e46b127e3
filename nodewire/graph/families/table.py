"""The architectures that are known by name: what each is called with, and what is particular about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.graph.families import inputs

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Family:
    """`attention` is the implementation that traces (None: the library's choice); `outputs` those of interest."""

    called: inputs.Called
    attention: str | None = None
    outputs: tuple[str, ...] = ()


_TEXT = Family(inputs.text)
_CAUSAL = Family(inputs.causal, outputs=("logits",))
_IMAGE = Family(inputs.image)

ARCHITECTURES: Mapping[str, Family] = {
    **dict.fromkeys(
        (
            "BertModel",
            "BertForMaskedLM",
            "BertForSequenceClassification",
            "BertForTokenClassification",
            "BertForQuestionAnswering",
            "DebertaV2Model",
            "DebertaV2ForSequenceClassification",
            "DebertaV2ForTokenClassification",
            "DistilBertModel",
            "DistilBertForSequenceClassification",
            "AlbertModel",
            "CamembertModel",
            "ElectraModel",
            "EuroBertModel",
            "ModernBertModel",
            "ModernBertForMaskedLM",
            "MPNetModel",
            "MPNetForMaskedLM",
            "NomicBertModel",
            "RobertaModel",
            "RobertaForMaskedLM",
            "RobertaForSequenceClassification",
            "XLMRobertaModel",
            "XLMRobertaForSequenceClassification",
            "T5EncoderModel",
        ),
        _TEXT,
    ),
    **dict.fromkeys(
        (
            "GemmaForCausalLM",
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "Phi3ForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen2MoeForCausalLM",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
            "Cohere2ForCausalLM",
            "CohereForCausalLM",
            "Gemma3ForCausalLM",
            "GPT2LMHeadModel",
            "GPTNeoXForCausalLM",
            "GraniteForCausalLM",
            "Olmo2ForCausalLM",
            "Olmo3ForCausalLM",
            "OlmoForCausalLM",
            "OPTForCausalLM",
            "PhiForCausalLM",
            "SmolLM3ForCausalLM",
            "StableLmForCausalLM",
            "Starcoder2ForCausalLM",
        ),
        _CAUSAL,
    ),
    # Its soft-capped scores exist in the eager implementation alone.
    "Gemma2ForCausalLM": Family(inputs.causal, attention="eager", outputs=("logits",)),
    **dict.fromkeys(
        (
            *("ResNetModel", "ResNetForImageClassification", "ViTModel", "ViTForImageClassification", "BeitModel"),
            *("ConvNextModel", "DeiTModel", "Dinov2Model", "SiglipVisionModel", "DPTForDepthEstimation"),
            *("SegformerModel", "SegformerForImageClassification", "SegformerForSemanticSegmentation"),
            *("SwinModel", "SwinForImageClassification", "Swinv2Model", "Swinv2ForImageClassification"),
        ),
        _IMAGE,
    ),
    "SiglipModel": Family(
        inputs.image_and_text, outputs=("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")
    ),
    "CLIPModel": Family(
        inputs.image_and_text, outputs=("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")
    ),
    "BartForConditionalGeneration": Family(inputs.text_to_text, outputs=("logits",)),
    "T5ForConditionalGeneration": Family(inputs.text_to_text, outputs=("logits",)),
    "WhisperModel": Family(inputs.speech_to_text, outputs=("last_hidden_state",)),
    "WhisperForConditionalGeneration": Family(inputs.speech_to_text, outputs=("logits",)),
}
"""By the name that config.json has under `architectures`, which is that of a class of `transformers`."""
