"""Which edges of a job carry less than their tensors' own dtypes: declared lossy, and fixed by the plan for everybody.

A customer opts in by its terms, edge by edge; the edge's own dtype is what travels otherwise. Only edges between tasks
can be narrowed (what a customer sends and gets is in the model's own dtype), and none that the manifest calls `exact`.
Producers narrow, consumers widen, both in the worker: commitments, spools and verifiers have what was on the wire.
nips/12-narrowed-edges.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from nodewire.errors import BadPlan
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest
from nodewire.protocol.tensors.frame import MXINT8

Codec = Literal["bf16", "int8"]
CODECS: tuple[Codec, ...] = ("bf16", "int8")
"""From the gentlest on."""

Coding = tuple[tuple[str, str], ...]
"""Of an edge's tensors, in their order: the own dtype, and the one that travels."""
Codings = Mapping[str, Coding]
"""By edge that is narrowed."""
OWN: Codings = MappingProxyType({})
"""No edge is: every one carries its own dtypes."""

_NARROWED: dict[Codec, dict[str, str]] = {
    "bf16": {"float32": "bfloat16"},
    "int8": {"float32": MXINT8, "bfloat16": MXINT8, "float16": MXINT8},
}


def sent_as(dtype: str, codec: Codec) -> str:
    """The dtype in which a tensor of `dtype` travels: its own, where the codec has nothing narrower, or is none."""
    return _NARROWED.get(codec, {}).get(dtype, dtype)


def can_narrow(edge: Edge, codec: Codec) -> bool:
    """Whether a customer may ask for `codec` on an edge, and it changes anything there."""
    if edge.exact or CUSTOMER in (edge.source, edge.target):
        return False
    return any(sent_as(tensor.dtype, codec) != tensor.dtype for tensor in edge.tensors)


def codings(manifest: Manifest, codecs: Mapping[str, Codec]) -> Codings:
    """What travels on the narrowed edges of a job whose terms have `codecs`.

    Raises:
        BadPlan: an edge that the manifest does not have, or one that `can_narrow` refuses.

    """
    if not codecs:
        return OWN
    edges = {edge.name: edge for edge in manifest.edges}
    found: dict[str, Coding] = {}
    for name, codec in codecs.items():
        edge = edges.get(name)
        if edge is None:
            may = ", ".join(one.name for one in manifest.edges if can_narrow(one, codec))[:400]
            raise BadPlan("terms.codecs", f"{name} is no edge of this model; these can be {codec}: {may or 'none'}")
        if not can_narrow(edge, codec):
            raise BadPlan("terms.codecs", f"{name} cannot be narrowed to {codec}")
        found[name] = tuple((tensor.dtype, sent_as(tensor.dtype, codec)) for tensor in edge.tensors)
    return found
