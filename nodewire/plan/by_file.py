"""`file/1`: the plan that a swarm's file gives. Pure; customer and node make it each for themselves, and compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodewire.errors import BadPlan
from nodewire.protocol.job.plan import Assignment, Plan, Terms, Verification
from nodewire.protocol.model.edge_codec import codings

if TYPE_CHECKING:
    from nodewire.protocol.market.static_swarm import Swarm
    from nodewire.protocol.model.manifest import Manifest

FIRST_RESULT_MS, NEXT_RESULT_MS = 600_000, 60_000
"""Nobody has certified speeds here, and who is dead is noticed by its link: these only end what hangs."""


def free(asked: Terms, most_lookahead: int) -> Terms:
    """The terms of a job that costs nothing, and whose providers the file names."""
    lookahead = min(asked.lookahead, most_lookahead)
    return Terms(max_chunk_msat=0, max_total_msat=0, codecs=asked.codecs, lookahead=lookahead)


def by_file(swarm: Swarm, manifest: Manifest, *, terms: Terms, customer: str) -> Plan:
    """The plan. What a market's plan cites of its committee is the digest of the swarm.

    Raises:
        BadPlan: the manifest is not one that the file's nodes can have, or the terms narrow an edge that cannot be.

    """
    digest, places, allowed = swarm.digest(), swarm.places(), free(terms, swarm.lookahead)
    if [task.name for task in manifest.tasks] != list(places):
        raise BadPlan("tasks", f"not a driver and {len(places) - 1} stages")
    codings(manifest, allowed.codecs)  # refused here, or kept by everybody
    return Plan(
        algorithm="file/1",
        manifest=manifest.digest(),
        committee=digest,
        epoch=0,
        snapshot=digest,
        certificate=digest,
        beacon=digest,
        customer=customer,
        k=0,
        terms=allowed,
        tasks=tuple(Assignment(task=task, provider=node, price_msat=0) for task, node in places.items()),
        chunk_msat=0,
        first_result_ms=FIRST_RESULT_MS,
        next_result_ms=NEXT_RESULT_MS,
        verification=Verification(policy="none", rate_ppm=0, share_ppm=0),
    )
