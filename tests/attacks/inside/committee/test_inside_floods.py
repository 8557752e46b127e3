"""Providers with or without a bond: stopping oracles' clocks, or filling their lists, so that nothing is judged."""

from __future__ import annotations

import time

import pytest

from nodewire.errors import NodewireError
from nodewire.oracle.committee import intake, rules
from nodewire.oracle.committee.state import VerifiedEvent
from nodewire.protocol.committee import commitment
from nodewire.protocol.committee.commitment import ChunkRoot, Commitment
from nodewire.protocol.encoding import canonical
from nodewire.protocol.job.chunk import Opening, leaf_of, most_bytes
from nodewire.protocol.tensors.fingerprint import COLUMNS
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.protocol.verification.comparison import compare
from nodewire.wire.evidence.pull import Want
from tests.oracle.committee.test_oracle_rules import HELD, beats_of
from tests.oracle.court.test_oracle_docket import shown_by
from tests.oracle.courtroom import MANIFEST, PROVIDER, TASK, VERIFIER, opened
from tests.oracle.sky import Sky
from tests.protocol.committee.actors import HOLDER, Provider, committee, digest, keys


def bloated(want: Want, nbytes: int) -> bytes:
    """A well-formed opening of many small tensors, dear to read."""
    shown = {"dtype": "float32", "shape": [], "sha256": "ab" * 32, "sketch": b""}
    leaf = {"edge": "hidden.1", "seq": 0, "tensors": [shown] * 64}
    count = nbytes // len(canonical.encode(leaf))
    document = {
        "v": 1, "author": PROVIDER.public, "request": want.request, "task": want.task, "chunk": want.first,
        "attempt": want.attempt, "secret": bytes(32), "leaves": [leaf] * count,
    }  # fmt: skip
    return canonical.encode(document)


async def test_an_opening_of_many_megabytes_is_not_read():
    """54 MB took an oracle ten seconds, in which it heard and said nothing; and samples are asked for often."""

    async def answer(peer, want):
        return bloated(want, 6_000_000)

    began = time.process_time()
    with pytest.raises(NodewireError):
        await shown_by(answer)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("mode", ["generate", "embed", "run"])
def test_what_honest_work_opens_is_below_that_however_large_its_tensors(mode):
    manifest = MANIFEST.model_copy(update={"mode": mode})
    frames = manifest.chunk if mode == "generate" else 1
    edges = [edge.name for edge in manifest.outputs(TASK)]
    big = Array("float32", (65, 8), bytes(65 * 8 * 4))
    leaves = tuple(leaf_of(manifest.digest(), Frame(e, n, (big,), {})) for e in edges for n in range(frames))
    one = Opening(
        author=PROVIDER.public, request="cd" * 32, task=TASK, chunk=1, attempt=0, secret=bytes(32), leaves=leaves
    )
    assert len(one.pack()) <= most_bytes(manifest, TASK)
    assert len(bloated(Want(what="opening", request="cd" * 32, task=TASK, attempt=0, first=1, last=1), 6_000_000)) > (
        Opening.MAX_BYTES
    )


@pytest.mark.parametrize("length", [1, 5, 4, 4 * COLUMNS - 4, 0])
def test_sketches_of_no_length_that_there_is_are_other_work_and_no_accident(length):
    """Provider and verifier, one hand: neither opening is the oracle's own, so both may be misshapen alike."""
    mine, theirs = opened(PROVIDER), opened(VERIFIER)

    def misshapen(opening, sha256):
        leaf = opening.leaves[0]
        shown = tuple(t.model_copy(update={"sketch": b"\x01" * length, "sha256": sha256}) for t in leaf.tensors)
        return opening.model_copy(update={"leaves": (leaf.model_copy(update={"tensors": shown}),)})

    found = compare(MANIFEST, TASK, misshapen(mine, "ab" * 32), misshapen(theirs, "cd" * 32))
    assert found.outcome == ("pass" if not length else "fail")  # of nothing nothing is apart: an audit finds that
    assert compare(MANIFEST, TASK, mine, misshapen(theirs, "cd" * 32)).outcome == "fail"


def committed(author, epoch, digest_):
    root = ChunkRoot(request=digest("request"), task=TASK, chunk=0, attempt=0, root=digest(author.public))
    return commitment.build(author, Commitment(committee=digest_, epoch=epoch, chunks=(root,)), created_at=1)[0]


def test_strangers_that_commit_first_leave_room_for_those_with_a_bond(monkeypatch):
    """A key costs nothing, and the room of an epoch is bounded: filled, no honest root would be final any more."""
    monkeypatch.setattr(intake._inventory, "MAX_COMMITMENTS", 16)
    monkeypatch.setattr(intake, "STRANGERS", 8)
    document, seats = committee(bond_holders=(HOLDER.public,))
    bonded = Provider("bonded", document, HELD, bond_msat=10**9)
    sky = Sky(document, seats, 1)
    sky.stored[bonded.bond.id] = bonded.bond
    sky.run_epochs(4, beats_of(sky, [bonded]))
    state = sky.states[seats[0].keys.public]
    for n in range(40):
        state, _ = rules.apply(VerifiedEvent(committed(keys(f"sybil/{n}"), state.epoch, state.digest)), state)
    assert len(state.commitments[state.epoch]) == 8
    state, _ = rules.apply(VerifiedEvent(committed(bonded.keys, state.epoch, state.digest)), state)
    assert bonded.keys.public in state.commitments[state.epoch]
