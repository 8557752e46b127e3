"""A small recipe and data like handwritten digits: a prototype of 8 x 8 for each of ten classes, and noise."""

from __future__ import annotations

import torch

from nodewire.training.protocol.recipe import Recipe

TOML = """
name = "digits"
loss = "cross_entropy"
steps = 20
batch = 32
rounds = 3
seed = 7
[family]
name = "mlp"
inputs = 64
hidden = [32]
classes = 10
[data]
layout = "arrays"
[inner]
optimizer = "sgd"
lr = 0.1
momentum = 0.9
"""
RECIPE = Recipe.from_toml(TOML)


def dataset(rows: int = 600) -> dict[str, torch.Tensor]:
    """x float32 [rows, 64] from 0 to 1, y int64 [rows]."""
    generator = torch.Generator().manual_seed(20)
    prototypes = torch.rand(10, 64, generator=generator)
    y = torch.arange(rows) % 10
    x = (prototypes[y] + 0.3 * torch.randn(rows, 64, generator=generator)).clamp(0, 1)
    return {"x": x, "y": y}
