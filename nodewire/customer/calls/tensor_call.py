"""Calls of any model in mode `run`: named tensors in, named tensors out; every call is a chunk of a job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nodewire.customer.calls.stateless_call import StatelessCall
from nodewire.errors import BadFrame, Unsupported
from nodewire.protocol.job.request import Ticket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.protocol.model.signature import Call, Signature
    from nodewire.protocol.tensors.frame import Array, Frame

MAX_JOB_BYTES = 64 * 2**20
"""Of the inputs of one job."""
MAX_JOB_FRAMES = 128
"""A ticket names every frame of the customer's, in 16 KiB."""
_NAMED_BYTES = 80
"""What a frame takes there, besides its edge's name."""
_HEAD_BYTES = 1_024


@dataclass(slots=True)
class Evaluation(StatelessCall):
    """`outputs` are those of every call, as far as they have come."""

    signature: Signature
    calls: Sequence[Call]
    sizes: list[dict[str, int]] = field(default_factory=list, init=False)
    outputs: list[dict[str, Array]] = field(default_factory=list, init=False)

    def frames(self) -> list[Frame[Array]]:
        self.sizes = [self.signature.check(call) for call in self.calls]
        return self.signature.frames(self.calls)

    def positions(self) -> int:
        return max((max(one.values(), default=1) for one in self.sizes), default=1)

    def add_output(self, out: Frame[Array]) -> None:
        if out.seq >= len(self.calls):
            raise BadFrame(out.edge, f"an output of call {out.seq}, there are {len(self.calls)}")
        if (out.meta.get("end") is True) != (out.seq == len(self.calls) - 1):
            raise BadFrame(out.edge, f"the end is said with call {out.seq} of {len(self.calls)}")
        came = self.signature.outputs_of(out, self.sizes[out.seq])
        if came.keys() & self.outputs[out.seq].keys():
            raise BadFrame(out.edge, f"came twice for call {out.seq}")
        self.outputs[out.seq].update(came)

    def forget(self) -> None:
        self.outputs = [{} for _ in self.calls]

    def has_output(self) -> bool:
        return any(self.outputs)

    def finish(self) -> None:
        for number, outputs in enumerate(self.outputs):
            if missing := self.signature.outputs.keys() - outputs.keys():
                raise BadFrame(min(missing), f"did not come for call {number}")


def jobs(signature: Signature, calls: Sequence[Call]) -> list[Sequence[Call]]:
    """Calls as jobs of them, in their order: as many to each as its ticket can name, and so many bytes.

    Raises:
        Unsupported: not even one call's inputs can be named.

    """
    room = Ticket.MAX_BYTES - _HEAD_BYTES
    ticket_bytes = sum(_NAMED_BYTES + len(edge.name) for edge in signature.sends)
    most = max(1, min(MAX_JOB_FRAMES // len(signature.sends), room // ticket_bytes))
    if ticket_bytes > room:
        raise Unsupported("model", f"it takes its inputs on {len(signature.sends)} edges, more than a ticket can name")
    found: list[list[Call]] = []
    left = 0
    for call in calls:
        nbytes = sent_bytes(signature, call)
        if not found or len(found[-1]) == most or nbytes > left:
            found.append([])
            left = MAX_JOB_BYTES
        found[-1].append(call)
        left -= nbytes
    return list(found)


def sent_bytes(signature: Signature, call: Mapping[str, Array]) -> int:
    """What a call's inputs take, on every edge on which they are sent."""
    return sum(call[tensor.name].nbytes for edge in signature.sends for tensor in edge.tensors)
