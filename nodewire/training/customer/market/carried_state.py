"""What providers carry from round to round, as their customer keeps account of it: digests, in tickets and results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.training.protocol.recipe import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.training.customer.machine.state import State


def find_carried(state: State, dealt: Mapping[int, str], indices: Sequence[int]) -> dict[int, str]:
    """What the providers of some shards carry on from the round before, as far as they carry anything.

    Only of what the outer step before was made of, and in time: everything else is as if another took the shard over.
    After a round that was made again it is what was carried on from that round, though its provider has gone on from
    there once before; who has not kept it for so long says so.
    """
    found: dict[int, str] = {}
    for one in state.counted:
        if one.round == state.round - 1 and one.index in indices and dealt[one.index] == one.provider:
            carried = state.debts[one.request, one.provider].carried
            if carried not in ("", NOTHING) and not state.works[one.index].afresh:
                found[one.index] = carried
    return found
