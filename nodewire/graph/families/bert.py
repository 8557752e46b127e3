"""Sentence encoders as modules to trace: ids and mask in, embeddings out. `transformers` builds the layers.

Needs the extra `nodewire[register]`; only registration imports it, never a worker that serves a task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from nodewire.core.extras import how_to_install
from nodewire.errors import BadConfig, BadInput
from nodewire.graph.families.builder import plain, taken, values
from nodewire.graph.families.checkpoint import Checkpoint
from nodewire.graph.families.encoder_directory import AFTER_PADDING, EncoderDirectory
from nodewire.graph.program.format import Input
from nodewire.weights.directory import stored_tensors
from nodewire.weights.tensorfile import AssembledTensor, read

if TYPE_CHECKING:
    from collections.abc import Mapping

BATCH, SEQUENCE = "batch", "sequence"
IDS, MASK = "input_ids", "attention_mask"
INPUTS = (
    Input(IDS, torch.int64, (BATCH, SEQUENCE)),
    Input(MASK, torch.int64, (BATCH, SEQUENCE)),
)


MODELS: Mapping[str, str] = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "mpnet": "MPNetModel",
    "modernbert": "ModernBertModel",
    "nomic_bert": "NomicBertModel",
}
"""The class in `transformers` that gives hidden states, by the `model_type` of config.json."""
_TYPED = ("bert", "roberta", "xlm-roberta", "nomic_bert")
"""Those that take types of tokens."""
_EAGER = ("mpnet",)
"""Those whose attention has only the implementation that the library calls eager."""
_POOLERS = ("bert", "roberta", "xlm-roberta", "mpnet")
"""Those that have a pooler of their own, which is left out."""


class SentenceEncoder(torch.nn.Module):
    """input_ids, attention_mask int64 [b, s] -> float32 [b, h]: pooled over the mask, L2-normalized if asked.

    Token types are zero. Positions and types are made from the mask, so that only the word embedding needs the ids; a
    text's are `first` and those after it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        pooling: Literal["mean", "cls"],
        normalized: bool,
        *,
        first: int = 0,
        is_typed: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.pooling = pooling
        self.normalized = normalized
        self.first, self.is_typed = first, is_typed

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)[None]
        types = {"token_type_ids": torch.zeros_like(attention_mask)} if self.is_typed else {}
        hidden = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=positions + self.first if self.first else positions,
            **types,
        ).last_hidden_state
        return pool(hidden, attention_mask, self.pooling, self.normalized)


def pool(
    hidden: torch.Tensor, attention_mask: torch.Tensor, pooling: Literal["mean", "cls"], normalized: bool
) -> torch.Tensor:
    """[b, s, h] -> [b, h], as sentence-transformers' Pooling and Normalize layers do."""
    if pooling == "cls":
        pooled = hidden[:, 0]
    else:
        mask = attention_mask[..., None].expand(hidden.shape).to(hidden.dtype)
        pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(pooled, p=2.0, dim=1) if normalized else pooled


def config(directory: EncoderDirectory) -> Any:
    """The directory's configuration as `transformers` has it.

    Raises:
        BadConfig: `transformers` is not installed.
        BadInput: the model is not of these families, or `transformers` does not take its configuration.

    """
    kind = directory.config.get("model_type")
    if kind not in MODELS:
        known = ", ".join(MODELS)
        raise BadInput("model_type", f"{str(kind)[:40]!r} is none that embeds text: {known}; --as-tensors cuts others")
    try:
        from transformers import AutoConfig
    except ImportError as error:
        raise BadConfig("transformers", f"not installed: {how_to_install('register')}") from error
    said = {name: value for name, value in plain(directory.config).items() if name not in ("torch_dtype", "dtype")}
    with taken():
        return AutoConfig.for_model(**said)


def model_of(settings: Any) -> Any:
    """The model of a configuration, without a pooler."""
    import transformers

    settings._attn_implementation = "eager" if settings.model_type in _EAGER else "sdpa"
    how = {"add_pooling_layer": False} if settings.model_type in _POOLERS else {}
    return getattr(transformers, MODELS[settings.model_type])(settings, **how)


def build(directory: EncoderDirectory) -> tuple[SentenceEncoder, dict[str, torch.Tensor]]:
    """The module without weights (on the meta device), in float32, and the values of what is no weight.

    Raises as `config`.
    """
    settings = config(directory)
    with taken(), torch.device("meta"):
        model = model_of(settings)
    buffers = {f"model.{name}": value for name, value in values(model).items()}
    kind = settings.model_type
    first = directory.pad_id + 1 if kind in AFTER_PADDING else 0
    made = SentenceEncoder(model, directory.pooling, directory.normalized, first=first, is_typed=kind in _TYPED)
    return made.eval(), buffers


def loaded(directory: EncoderDirectory) -> Any:
    """The model with its weights. Raises as `config`; BadInput, NotFound: the directory lacks one."""
    with taken():
        model = model_of(config(directory))
    own = model.state_dict()
    checkpoint = Checkpoint(model, stored_tensors(directory.path), {})
    parts = {
        name: AssembledTensor(one.dtype, tuple(one.shape), tuple(checkpoint.parts(name))) for name, one in own.items()
    }
    model.load_state_dict({name: read(one) for name, one in parts.items()})
    return model.eval()
