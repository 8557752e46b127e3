"""Which committed chunks are computed again, and by whom: drawn by the beacon over the certificate that holds them.

Nobody can commit after knowing the draw, and everybody derives the same one. nips/18-samples.md.

    h(data) = tagged hash "nodewire/sampled/1" of beacon || sample key || data

A root counts if it is the first that any certificate holds of a node's work on a task's chunk (who could commit again
and again would have it drawn at last), by the plan's provider of the task, and no later than the chunk's deadline
(`Plan.deadline_epoch`). A plan with another rate than the committee's is nobody's. A root is drawn if the first 8 bytes
of h("") as an integer, times 1,000,000, divided by 2^64, are below the plan's rate. Verifier number j is drawn by
h(byte j) from the bonded nodes of the snapshot that hold the task, have no other part in the plan and are not drawn in
this epoch for another task of the job (whose inputs would show them the answer), sorted by pubkey, with their bond
units (at most 1,000) as weights, none twice. A tenth of the samples, drawn by h("audit") in the same way, oracles
compute again even where the verifier agrees: the two could be one.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from nodewire.protocol.encoding.canonical import tagged_hash
from nodewire.protocol.market.snapshot import MAX_UNITS, Node, Snapshot
from nodewire.protocol.tensors.fingerprint import MILLION
from nodewire.protocol.verification.sample import Sample
from nodewire.protocol.verification.verdict import MAX_VERIFIERS, sample_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from nodewire.protocol.committee.commitment import ChunkRoot, CommitmentEvent
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.job.request import Request

AUDITED_PPM = 100_000
"""Of samples on which provider and verifier agree: the oracles compute these again all the same."""
INSPECTED_PPM = 250_000
"""The part of suspect results (`protocol.verification.arithmetic`) that is inspected; audited ones are among them."""


def draw(
    committee: Committee,
    beacon: str,
    commitments: Iterable[CommitmentEvent],
    requests: Mapping[str, Request],
    snapshot: Snapshot,
    *,
    seen: Collection[str] = (),
) -> tuple[Sample, ...]:
    """The samples of an epoch, in the order of (commitment id, chunk).

    Args:
        committee: its numbers say how many chunks are drawn, and by how many each is computed again.
        beacon: of the epoch whose certificate holds `commitments` (64 hex digits); `snapshot` is that epoch's.
        commitments: all that the epoch's certificate holds.
        requests: the job requests that the commitments name, as far as they are known; others are not sampled.
        snapshot: of the same epoch: verifiers are drawn from it.
        seen: places (`place`) of which an earlier certificate holds a root already.

    """
    digest, known = committee.digest(), set(seen)
    busy: dict[tuple[str, str], str] = {}
    """By verifier and request, the task of it that it was drawn for."""
    found = []
    for committed in sorted(commitments, key=lambda one: one.id):
        for root in committed.commitment.chunks if committed.commitment is not None else ():
            request = requests.get(root.request)
            if request is None or request.plan.committee != digest or not _is_in_plan(root, committed, request.plan):
                continue
            if request.plan.verification.rate_ppm != committee.verify_rate_ppm:
                continue
            if snapshot.epoch > request.plan.deadline_epoch(root.chunk, committee.epoch_ms):
                continue
            at = place(committed.provider, root.request, root.task, root.chunk)
            if at in known:
                continue
            known.add(at)
            key = sample_key(committed.provider, *root.key)
            if is_drawn(beacon, key, request.plan.verification.rate_ppm):
                barred = {node for (node, id_), task in busy.items() if id_ == request.id and task != root.task}
                barred |= {committed.provider, request.customer, *request.plan.providers()}
                verifiers = _verifiers(committee, beacon, key, root.task, request.plan.manifest, barred, snapshot)
                busy |= {(verifier, request.id): root.task for verifier in verifiers}
                found.append(
                    Sample(
                        provider=committed.provider,
                        request=root.request,
                        task=root.task,
                        chunk=root.chunk,
                        attempt=root.attempt,
                        root=root.root,
                        verifiers=verifiers,
                    )
                )
    return tuple(found)


def place(provider: str, request: str, task: str, chunk: int) -> str:
    """The name of a node's work on a chunk of a task: what is drawn once."""
    return sample_key(provider, request, task, chunk, 0)


def turn(beacon: str, key: str) -> bytes:
    """By which the samples of one node stand in line: nobody can choose it."""
    return _hash(beacon, key, b"turn")


def is_drawn(beacon: str, key: str, rate_ppm: int) -> bool:
    """Whether the sample with this key is drawn at `rate_ppm`."""
    return int.from_bytes(_hash(beacon, key)[:8], "big") * MILLION >> 64 < rate_ppm


def is_audited(beacon: str, key: str) -> bool:
    """Whether the oracles compute the sample with this key again even if its verifier finds nothing wrong."""
    return int.from_bytes(_hash(beacon, key, b"audit")[:8], "big") * MILLION >> 64 < AUDITED_PPM


def is_inspected(beacon: str, key: str) -> bool:
    """Whether the oracles compute the sample with this key again if it is suspect. What is audited is among it."""
    return int.from_bytes(_hash(beacon, key, b"audit")[:8], "big") * MILLION >> 64 < INSPECTED_PPM


def _is_in_plan(root: ChunkRoot, committed: CommitmentEvent, plan: Plan) -> bool:
    return any((a.task, a.provider) == (root.task, committed.provider) for a in plan.tasks)


def _verifiers(
    committee: Committee,
    beacon: str,
    key: str,
    task: str,
    manifest: str,
    barred: Collection[str],
    snapshot: Snapshot,
) -> tuple[str, ...]:
    pool = [
        node.pubkey
        for node in snapshot.nodes
        if node.pubkey not in barred and _units(node, committee) and _holds(node, manifest, task)
    ]
    units = {node.pubkey: _units(node, committee) for node in snapshot.nodes}
    drawn: list[str] = []
    while pool and len(drawn) < MAX_VERIFIERS:
        sums = list(accumulate(units[pubkey] for pubkey in pool))
        value = int.from_bytes(_hash(beacon, key, bytes([len(drawn)])), "big") % sums[-1]
        drawn.append(pool.pop(bisect_right(sums, value)))
    return tuple(drawn)


def _units(node: Node, committee: Committee) -> int:
    return min(node.bond_msat // committee.bond_unit_msat, MAX_UNITS)


def _holds(node: Node, manifest: str, task: str) -> bool:
    return any(held.manifest == manifest and any(t.task == task for t in held.tasks) for held in node.held)


def _hash(beacon: str, key: str, data: bytes = b"") -> bytes:
    return tagged_hash("nodewire/sampled/1", bytes.fromhex(beacon + key) + data)
