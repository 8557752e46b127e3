"""Rotary positions: how fast each pair of a head's dimensions turns, and the tables of their angles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.llm.spec.config import DecoderConfig, Linear, Llama3, LongRope, Yarn

if TYPE_CHECKING:
    from collections.abc import Sequence

Angles = tuple[Tensor, Tensor]
"""Cosines, float32 [n, 1, 1, rotary / 2]; sines, [n, 1, 2, rotary / 2], those of the first half negative."""


def inverse_frequencies(config: DecoderConfig, positions: int) -> tuple[Tensor, float]:
    """Radians per position of each pair of dimensions, float32 [rotary / 2], and what cosines and sines are times.

    `positions` is how far a session may reach.
    """
    frequencies = _plain(config, float(config.rope_theta))
    match config.rope_scaling:
        case None:
            return frequencies, 1.0
        case Linear() as linear:
            return frequencies / float(linear.factor), 1.0
        case Llama3() as llama3:
            return _stretched(frequencies, llama3), 1.0
        case Yarn() as yarn:
            return _interpolated(config, frequencies, yarn), float(yarn.attention_factor)
        case LongRope() as long:
            beyond = positions > long.original_max_position_embeddings
            factors = torch.tensor([float(factor) for factor in (long.long_factor if beyond else long.short_factor)])
            return frequencies / factors, float(long.attention_factor)


def _plain(config: DecoderConfig, theta: float) -> Tensor:
    return 1.0 / theta ** (torch.arange(0, config.rotary, 2).float() / config.rotary)


def _stretched(frequencies: Tensor, scaling: Llama3) -> Tensor:
    """Long wavelengths slowed by `factor`, short ones kept, those between interpolated."""
    low, high = float(scaling.low_freq_factor), float(scaling.high_freq_factor)
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / float(scaling.factor) + kept * frequencies


def _interpolated(config: DecoderConfig, frequencies: Tensor, scaling: Yarn) -> Tensor:
    """YaRN, section 3.2: what turns `beta_fast` times in the first context is kept, what turns `beta_slow` slowed."""
    base, count = float(config.rope_theta), config.rotary

    def dimension(turns: float) -> float:
        """The dimension that turns so often in the first context."""
        return count * math.log(scaling.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(float(scaling.beta_fast)), dimension(float(scaling.beta_slow))
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, count - 1)
    ramp = (torch.arange(count // 2).float() - low) / (high - low if high != low else 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return frequencies / float(scaling.factor) * (1 - kept) + frequencies * kept


class Rope:
    """The angles of all positions, in one table or in several, one after the other.

    Of each it has the radians per position, what cosines and sines are times, and how many positions it has.
    """

    def __init__(self, tables: Sequence[tuple[Tensor, float, int]], device: torch.device) -> None:
        cos, sin = [], []
        for frequencies, scale, positions in tables:
            angles = torch.arange(positions).float()[:, None] * frequencies
            cos.append(angles.cos().mul_(scale))
            sin.append(angles.sin_().mul_(scale))
            del angles
        whole = (parts[0] if len(parts) == 1 else torch.cat(parts) for parts in (cos, sin))
        self._cos, self._sin = (one[:, None, None].to(device) for one in whole)

    def at(self, rows: Tensor) -> Angles:
        """Those in these rows (Past.angles)."""
        sin = self._sin.index_select(0, rows)
        return self._cos.index_select(0, rows), torch.cat((-sin, sin), 2)


def ropes(config: DecoderConfig, positions: int, device: torch.device) -> list[Rope]:
    """The tables of full layers and of sliding ones, the same unless the model tells them apart.

    Where short sessions turn otherwise than long ones, theirs come first.
    """
    lengths = [length for length in (config.short_positions(positions), positions) if length]
    full = Rope([(*inverse_frequencies(config, length), length) for length in lengths], device)
    if config.rope_local_base_freq is None:
        return [full, full]
    local = _plain(config, float(config.rope_local_base_freq))
    return [full, Rope([(local, 1.0, length) for length in lengths], device)]


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """`x` [n, heads, head_dim] turned: of its first `rotary` dimensions, each with the one half of them further."""
    cos, sin = angles
    (n, heads, head_dim), rotary = x.shape, 2 * cos.shape[-1]
    pairs = (x if rotary == head_dim else x[..., :rotary]).reshape(n, heads, 2, -1).float()
    turned = (pairs * cos).addcmul_(pairs.flip(2), sin).to(x.dtype).view(n, heads, rotary)
    return turned if rotary == head_dim else torch.cat((turned, x[..., rotary:]), -1)
