"""DeepSeek-V3 and R1: attention by latents, plain first layers, then experts chosen by sigmoid scores in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.mixture import latent
from nodewire.llm.families.mixture.latent import pieces

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "DeepseekV3ForCausalLM"


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("scoring_func", "sigmoid")
    fields.only("topk_method", "noaux_tc")
    found = latent.parse(fields, interleaved=fields.flag("rope_interleave", True))
    experts = latent.mixture(fields, found, experts=256, shared=1, inner=2_048, first=3, scale=2.5) | {
        "num_experts_per_tok": fields.integer("num_experts_per_tok", 8),
        "scoring": "sigmoid",
        "norm_topk_prob": fields.flag("norm_topk_prob", True),
        "n_group": fields.integer("n_group", 8),
        "topk_group": fields.integer("topk_group", 4),
    }
    return found | {"experts": experts}
