"""Seeded pools of unlike machines at Shard's seven places, and the decoder that they share.

A GPU's memory, bandwidth and dense 16-bit rate are its maker's figures; of the latter two it reaches `_REACHED`. A step
of one layer reads the layer's weights once and computes for every position. A machine at home has 20 to 100 Mbit/s up,
one in a data centre 1 Gbit/s; a last mile is 1 to 8 ms. Round trips between places are those of
`bench.network.coordinates`: Shard's receipts, and a line by distance where they have none; each pair's is 0.85 to 1.25
times that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from bench.network.coordinates import shard
from nodewire.plan.place.model import Chain, Node, Pool, Table, Task

_REACHED = 0.6
_GB = 10**9


@dataclass(frozen=True, slots=True)
class Gpu:
    memory_gb: float
    gb_per_s: float
    tflops: float
    share: float
    home: float
    """How often it stands in a home."""


GPUS = {
    "RTX 3060": Gpu(12, 360, 51, 0.14, 1.0),
    "T4": Gpu(16, 320, 65, 0.10, 0.0),
    "RTX 3090": Gpu(24, 936, 71, 0.22, 0.9),
    "L4": Gpu(24, 300, 121, 0.10, 0.0),
    "RTX 4090": Gpu(24, 1_008, 165, 0.22, 0.8),
    "RTX 5090": Gpu(32, 1_792, 210, 0.08, 0.8),
    "A100 40GB": Gpu(40, 1_555, 312, 0.08, 0.0),
    "A100 80GB": Gpu(80, 2_039, 312, 0.04, 0.0),
    "H100": Gpu(80, 3_350, 989, 0.02, 0.0),
}


@dataclass(frozen=True, slots=True)
class Decoder:
    """Layers that are alike: bytes of weights and of caches a position, work, and width of what passes between them."""

    layers: int
    layer_bytes: int
    layer_gflop: float
    cache_bytes: int
    """Of one position in one layer."""
    hidden_bytes: int
    context: int

    def chain(self) -> Chain:
        on = {name: self._table(gpu) for name, gpu in GPUS.items()}
        task = Task(
            name="layer",
            memory_bytes=self.layer_bytes,
            item_bytes=self.cache_bytes * self.context,
            ms=((1, 1.0),),
            out_bytes=self.hidden_bytes,
            on=on,
        )
        layers = tuple(
            Task(f"layer.{i}", task.memory_bytes, task.ms, task.item_bytes, task.out_bytes, on)
            for i in range(self.layers)
        )
        return Chain(layers, self.hidden_bytes)

    def _table(self, gpu: Gpu) -> Table:
        read_ms = self.layer_bytes / (gpu.gb_per_s * _REACHED * 1e6)
        position_ms = self.layer_gflop / (gpu.tflops * _REACHED)
        return ((1, read_ms + position_ms), (1_024, read_ms + 1_024 * position_ms))


LLAMA_70B_INT8 = Decoder(80, 860_000_000, 1.71, 4_096, 16_384, 2_048)
LLAMA_70B_INT4 = Decoder(80, 460_000_000, 1.71, 4_096, 16_384, 2_048)
LLAMA_8B = Decoder(32, 436_000_000, 0.436, 4_096, 8_192, 2_048)


def pool(count: int, chance: Random) -> Pool:
    """`count` machines, and a customer at one of the places."""
    between = shard()
    sites = range(len(between))
    names, weights = list(GPUS), [gpu.share for gpu in GPUS.values()]
    nodes, at, mile = [], [], []
    for index in range(count):
        name = chance.choices(names, weights)[0]
        is_home = chance.random() < GPUS[name].home
        up = chance.uniform(20, 100) * 125 if is_home else 125_000.0
        down = chance.uniform(2, 5) * up if is_home else up
        memory = int(GPUS[name].memory_gb * 0.92 * _GB)
        nodes.append(Node(f"{name} {index}", memory, kind=name, up=up, down=down))
        at.append(chance.choice(sites))
        mile.append(chance.uniform(3, 8) if is_home else chance.uniform(0.3, 1))
    at.append(chance.choice(sites))
    mile.append(2.0)
    side = count + 1
    rtt = [[0.0] * side for _ in range(side)]
    for i in range(side):
        for j in range(i):
            apart = max(between[at[i]][at[j]] / 1_000, 1.0) * chance.uniform(0.85, 1.25)
            rtt[i][j] = rtt[j][i] = apart + mile[i] + mile[j]
    return Pool(tuple(nodes), tuple(map(tuple, rtt)))


def spread(count: int, chance: Random) -> Pool:
    """Machines anywhere in a country 60 by 40 ms wide, told by coordinates: nobody has a table of thousands."""
    few = pool(64, chance).nodes
    nodes = []
    for index in range(count):
        like = chance.choice(few)
        at = (chance.uniform(0, 60), chance.uniform(0, 40), chance.uniform(0.5, 8))
        nodes.append(replace(like, name=f"{like.kind} {index}", at=at))
    return Pool(tuple(nodes), customer=(30.0, 20.0, 1.0))


def lasting(count: int, seed: int, decoder: Decoder) -> Pool:
    """The first pool from `seed` on whose memory holds the decoder at least one and a half times."""
    needed = decoder.layers * decoder.layer_bytes
    while True:
        found = pool(count, Random(seed))
        if sum(node.memory_bytes for node in found.nodes) >= 1.5 * needed:
            return found
        seed += 1_000
