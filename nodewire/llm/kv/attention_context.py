"""What a layer may know of the positions before it, and the attention itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from nodewire.llm.kv.alibi import Slopes


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """How a layer attends.

    `scale` multiplies the scores; `softcap`, unless 0, bends them to within its both signs; `window`, unless 0, is how
    many positions are seen, the query's own included; `sinks`, float32 [heads], take part in the softmax of their heads
    and add nothing; `alibi` is added to the scores.
    """

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: Tensor | None = None
    alibi: Slopes | None = None


class Past(Protocol):
    """What one forward builds on: its rows may belong to several sessions, and to branches of one.

    A layer hands in its rows' keys and values and gets what they attend to; where those are kept, and which of the
    others each row sees, is the implementation's.
    """

    positions: Tensor
    """int64 [n]: where in its sequence each row stands."""
    angles: Tensor
    """int64 [n]: where in the tables of angles (nodewire.llm.layers.rope) each row's are."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: AttentionOptions) -> Tensor:
        """Keep `k` and `v` [n, kv_heads, head_dim] as the rows' own, and attend with `q` [n, heads, head_dim].

        A row attends to all that it sees, itself included: [n, heads * head_dim]. `layer` counts from the stage's
        first.
        """


def attention(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, how: AttentionOptions, *, causal: bool
) -> Tensor:
    """Rows `q` [n, heads, head_dim] over `keys` and `values` [kv_heads, cells, head_dim]: [n, heads * head_dim].

    `mask` bool [n, cells] says which cells each row sees; without one a single row sees all, and n rows of as many
    cells (`causal`) those up to their own. Or it is what is added to the scores, float32 [heads, n, cells].
    """
    n, heads, head_dim = q.shape
    kv_heads = keys.shape[0]
    if how.softcap or how.sinks is not None:
        return _by_hand(q, keys, values, mask, how, causal=causal)
    k, v = keys[None], values[None]
    if n == 1:
        # All of one row's queries see the same keys: a group's queries are the rows of one attention.
        grouped = q.view(1, kv_heads, -1, head_dim)
        mask = mask.view(1, kv_heads, -1, mask.shape[-1]) if mask is not None and mask.is_floating_point() else mask
        return F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=how.scale).reshape(1, -1)
    attended = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k,
        v,
        attn_mask=mask if mask is None or mask.ndim == 2 else mask[None],
        is_causal=causal,
        scale=how.scale,
        enable_gqa=heads != kv_heads,
    )
    return attended.transpose(1, 2).reshape(n, -1)


def _by_hand(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, how: AttentionOptions, *, causal: bool
) -> Tensor:
    """What the fused kernels do not know: soft caps, sinks. One group of heads at a time, so that scores stay small."""
    n, heads, head_dim = q.shape
    kv_heads, cells = keys.shape[:2]
    group = heads // kv_heads
    if causal:
        mask = torch.ones(n, cells, dtype=torch.bool, device=q.device).tril_()
    hidden = None if mask is None else ~mask[:, None]
    out = q.new_empty(n, kv_heads, group, head_dim)
    for head, queries in enumerate(q.view(n, kv_heads, group, head_dim).unbind(1)):
        sinks = None if how.sinks is None else how.sinks[head * group : (head + 1) * group, None]
        out[:, head] = _one_group(queries, keys[head], values[head], hidden, how, sinks)
    return out.view(n, -1)


def _one_group(
    queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None, how: AttentionOptions, sinks: Tensor | None
) -> Tensor:
    """Heads `queries` [n, group, head_dim] that share `keys` and `values` [cells, head_dim], as they attend."""
    n, group, head_dim = queries.shape
    scores = torch.matmul(queries.reshape(n * group, head_dim), keys.T).float().mul_(how.scale)
    if how.softcap:
        scores.div_(how.softcap).tanh_().mul_(how.softcap)
    scores = scores.view(n, group, -1)
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    most = scores.amax(-1, keepdim=True)
    if sinks is not None:
        most = torch.maximum(most, sinks)
    scores.sub_(most).exp_()
    total = scores.sum(-1, keepdim=True)
    if sinks is not None:
        total += (sinks - most).exp_()
    weights = scores.div_(total).view(n * group, -1).to(queries.dtype)
    return torch.matmul(weights, values).view(n, group, head_dim)
