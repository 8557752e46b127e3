"""ALiBi, https://arxiv.org/abs/2108.12409: what is added to scores, so that they fall with the distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from nodewire.llm.spec.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Slopes:
    """`each`: float32 [heads].

    With a `scale` they and their products with positions are rounded to bfloat16, and what is added is times it.
    """

    each: Tensor
    scale: float | None

    def bias(self, stand: Tensor, positions: Tensor, sees: Tensor | None) -> Tensor:
        """The sums for the scores of rows at `positions` [.., n] with cells that `stand` at [.., cells].

        They are float32 [.., heads, n, cells], 0 of a row's own position and less before it. `sees`, bool [.., n,
        cells], says which cells a row sees; all without it.
        """
        slopes = self.each[:, None, None]
        if self.scale is None:
            found = slopes * (stand[..., None, :] - positions[..., None])[..., None, :, :]
        else:
            slopes = slopes.bfloat16().float()
            there, own = (
                (slopes * at.bfloat16().float()).bfloat16().float()
                for at in (stand[..., None, None, :], positions[..., None, :, None])
            )
            found = (there - own).mul_(self.scale)
        return found if sees is None else found.masked_fill_(~sees[..., None, :, :], -torch.inf)


def slopes_of(config: DecoderConfig, scale: float, device: torch.device) -> Slopes | None:
    """A model's, if it has any; `scale` is what its scores are times.

    Of a power of two heads they are equal steps of the exponent; of other numbers every other one of the next power's
    first, then those between.
    """
    if config.alibi is None:
        return None
    heads, most = config.num_attention_heads, float(config.alibi.bias_max)
    count = 1 << (heads - 1).bit_length()
    powers = torch.arange(1, count + 1)
    if config.alibi.rounded:  # a power of two bases, as its authors have it: bfloat16 tells them from exact ones
        coarse, fine = (torch.tensor(2.0 ** (-most / steps)) for steps in (max(count // 2, 1), count))
        each = fine**powers if count == heads else torch.cat((coarse ** powers[: count // 2], fine ** powers[::2]))
        return Slopes(each[:heads].to(device), scale)
    exponents = powers * (most / count)
    if count != heads:
        exponents = torch.cat((exponents[1::2], exponents[::2]))[:heads]
    return Slopes((2.0**-exponents).to(device), None)
