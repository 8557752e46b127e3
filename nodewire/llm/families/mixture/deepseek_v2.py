"""DeepSeek-V2 and V2-Lite: attention by latents, plain first layers, then experts chosen by softmax scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodewire.llm.families.mixture import latent
from nodewire.llm.families.mixture.latent import pieces

if TYPE_CHECKING:
    from nodewire.llm.families.fields.fields import Fields

__all__ = ["ARCHITECTURE", "parse", "pieces"]

ARCHITECTURE = "DeepseekV2ForCausalLM"

_METHODS = {"greedy": "greedy", "group_limited_greedy": "group_limited_greedy"}


def parse(fields: Fields) -> dict[str, Any]:
    fields.only("mlp_bias", False)
    fields.only("scoring_func", "softmax")
    fields.only("norm_topk_prob", False)
    found = latent.parse(fields, interleaved=True)
    groups, best = (fields.integer(name, 1) for name in ("n_group", "topk_group"))
    in_groups = fields.choice("topk_method", _METHODS, "greedy") == "group_limited_greedy"
    experts = latent.mixture(fields, found, experts=64, shared=2, inner=1_407, first=0, scale=1.0) | {
        "num_experts_per_tok": fields.integer("num_experts_per_tok"),
        "n_group": groups if in_groups else 1,
        "topk_group": best if in_groups else 1,
    }
    return found | {"experts": experts}
