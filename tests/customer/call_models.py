"""Manifests of mode `run` with their programs, without torch: documents as a registration writes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nodewire.protocol.encoding import canonical
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor

Ports = Sequence[tuple[str, str, str, tuple[int | str, ...]]]
"""Edge, tensor, dtype, shape; of an output the tensor is the value, too."""


def program(
    inputs: Ports,
    nodes: Sequence[Sequence[Any]],
    outputs: Ports,
    dims: dict[str, int],
    *,
    volume: int = 2**20,
    below: int = 0,
    weights: dict[str, tuple[int, ...]] | None = None,
) -> bytes:
    """`below` is that of every integer input."""
    document = {
        "v": 1,
        "slots": 4,
        "dims": dims,
        "volume": volume,
        "inputs": [
            {"edge": e, "tensor": t, "dtype": d, "shape": s, "below": below if "int" in d else 0}
            for e, t, d, s in inputs
        ],
        "weights": [{"name": n, "dtype": "float32", "shape": s, "file": 0} for n, s in (weights or {}).items()],
        "nodes": [list(node) if len(node) == 4 else [*node, {}] for node in nodes],
        "outputs": [{"edge": e, "tensor": t, "dtype": d, "shape": s, "value": t} for e, t, d, s in outputs],
    }
    return canonical.encode(document)


def ref(name: str) -> dict[str, str]:
    return {"ref": name}


def manifest(programs: dict[str, bytes], ends: dict[str, tuple[str, str]], name: str = "model") -> Manifest:
    """A manifest of graph tasks; `ends` says from where to where every edge goes, in the order of its edges."""
    edges = []
    for edge, (source, target) in ends.items():
        document = canonical.decode(programs[target if target != CUSTOMER else source], max_bytes=2**20)
        ports = [p for p in document["inputs" if target != CUSTOMER else "outputs"] if p["edge"] == edge]
        tensors = [Tensor.from_document({"name": p["tensor"], "dtype": p["dtype"], "shape": p["shape"]}) for p in ports]
        used = {n for p in ports for n in p["shape"] if isinstance(n, str)}
        dims = {n: most for n, most in document["dims"].items() if n in used}
        edges.append(
            Edge(name=edge, source=source, target=target, tensors=tuple(tensors), dims=dims, bytes_per_position=4)
        )
    tasks = [
        Task(
            name=task,
            engine="graph",
            program=BlobRef(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data)),
            weights=(),
            memory_bytes=10**6,
            slots=4,
            flops=1,
        )
        for task, data in programs.items()
    ]
    return Manifest(name=name, mode="run", tasks=tuple(tasks), edges=tuple(edges))


class Blobs:
    """A market that has these programs; `fetched` are the hashes that it was asked for."""

    def __init__(self, folder: Path, programs: dict[str, bytes]) -> None:
        self.fetched: list[str] = []
        self._folder = folder
        for data in programs.values():
            (folder / hashlib.sha256(data).hexdigest()).write_bytes(data)

    async def fetch_blob(self, sha256: str, max_bytes: int) -> Path:
        self.fetched.append(sha256)
        return self._folder / sha256
