"""Who guesses a prompt rightly, and has all that relay and stores hold, cannot find out that the guess was right.

What the guess gives is computed here from public weights, bit for bit as the providers did: only salts are missing.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from nodewire.protocol.committee.commitment import ChunkRoot
from nodewire.protocol.encoding import canonical, merkle
from nodewire.protocol.job import request as job
from nodewire.protocol.job.chunk import Opening, chunk_of, leaf_of, salt_secret
from nodewire.protocol.job.request import Ticket, content_of
from nodewire.protocol.model import manifest_event
from nodewire.protocol.tensors import fingerprint
from nodewire.protocol.tensors.frame import Array, Frame
from tests.kinds.inprocess import to_arrays, to_torch

PROMPT = "the dog lay beside the mat"  # which no other customer of the market asks
pytestmark = pytest.mark.timeout(600)  # it reads all that the market has left
HEX32 = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def guessed(folder: Path, manifest, params) -> tuple[Frame[Array], list[Frame[Array]]]:
    """The customer's frame and all that the tasks put out if the prompt is PROMPT, from what stores have."""
    from nodewire.kind import Limits
    from nodewire.llm import entry

    blobs = {path.name[:64]: path for path in folder.rglob("*") if path.is_file()}
    room = Limits(memory_bytes=50_000_000)
    actors = {
        task.name: entry.load(
            task.engine, blobs[task.program.sha256].read_bytes(), [blobs[w.sha256] for w in task.weights], room
        )
        for task in manifest.tasks
    }
    for one in actors.values():
        one.open("guess", params)
    targets = {edge.name: edge.target for edge in manifest.edges}
    text = PROMPT.encode()
    edge = next(edge.name for edge in manifest.edges if edge.source == "customer")
    first = Frame(edge, 0, (Array("uint8", (len(text),), text),), {"chunk": 0})
    waiting, out = [first], []
    while waiting:
        frame = waiting.pop(0)
        for made in actors[targets[frame.edge]].receive("guess", to_torch(frame)):
            out.append(to_arrays(made))
            if targets[made.edge] != "customer":
                waiting.append(out[-1])
    return first, out


def openings(request, manifest, frames) -> dict[tuple[str, int], Opening]:
    """By task and chunk what a provider would open, but for the secret."""
    order = {edge.name: i for i, edge in enumerate(manifest.edges)}
    sources = {edge.name: edge.source for edge in manifest.edges}
    found = defaultdict(list)
    for frame in frames:
        found[sources[frame.edge], chunk_of(manifest, frame.seq)].append(leaf_of(request.plan.manifest, frame))
    return {
        (task, chunk): Opening(
            author=request.plan.assignment(task).provider,
            request=request.id,
            task=task,
            chunk=chunk,
            attempt=0,
            secret=bytes(32),
            leaves=tuple(sorted(leaves, key=lambda leaf: (order[leaf.edge], leaf.seq))),
        )
        for (task, chunk), leaves in found.items()
    }


def roots_of(opening: Opening, secrets: set[bytes]):
    """Every root that the guess gives, with these 32 bytes in every place where the provider's secret stands."""
    data = [leaf.data(opening.request) for leaf in opening.leaves]
    of = canonical.encode([opening.request, opening.task, opening.chunk, opening.attempt])
    place = [opening.author, opening.request, opening.task, opening.chunk, opening.attempt]
    roots = [merkle.root([merkle.leaf(one) for one in data]), hashlib.sha256(b"".join(data)).digest()]
    for secret in secrets:
        roots.append(merkle.root([merkle.leaf(one, secret) for one in data]))
        roots += [
            merkle.root([merkle.leaf(one, merkle.salt(behind, i)) for i, one in enumerate(data)])
            for behind in (secret, canonical.tagged_hash("nodewire/salt-secret/1", secret + of))
        ]
    for root in roots:
        yield from (root, bytes.fromhex(canonical.digest("nodewire/work/1", [*place, root])))


def needles(request, opening: Opening, first: Frame[Array]):
    """What might stand somewhere as it is: hashes and sketches of what a guess gives, without any salt."""
    yield content_of(first).encode()
    yield bytes.fromhex(content_of(first))
    yield hashlib.sha256(PROMPT.encode()).digest()
    yield hashlib.sha256(PROMPT.encode()).hexdigest().encode()
    for leaf in opening.leaves:
        data = leaf.data(opening.request)
        for digest in (merkle.leaf(data), merkle.leaf(data, bytes(32)), hashlib.sha256(data).digest()):
            yield from (digest, digest.hex().encode())
        for tensor in leaf.tensors:
            yield from (bytes.fromhex(tensor.sha256), tensor.sha256.encode())
            if tensor.dtype == "float32":
                yield from (tensor.sketch, tensor.sketch.hex().encode(), tensor.sketch[: 4 * fingerprint.COLUMNS])
                yield np.frombuffer(tensor.sketch, "<f4").astype(">f4").tobytes()
                sketched = hashlib.sha256(tensor.sketch)
                yield from (sketched.digest(), sketched.hexdigest().encode())


async def test_a_relays_dump_does_not_confirm_a_guess_and_the_salts_do(market):
    async with market.customer("private") as customer:
        terms = customer.terms.model_copy(update={"verify": "sampled"})
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=3, terms=terms, wait=True):
            pass
        done = customer.last
    assert done["verdicts"]

    events = await market.events(Filter())
    dumps = [event.to_json().encode() for event in events]
    dumps += [path.read_bytes() for path in market.folder.glob("relay.db*")]
    dumps += [path.read_bytes() for path in (market.folder / "blobs").rglob("*") if path.is_file()]
    hexes = {value for dump in dumps for value in HEX32.findall(dump)}
    request = job.parse(next(event for event in events if event.id == done["request"]))
    about = [event.to_json().encode() for event in events if request.id in event.to_json()]
    secrets = {bytes.fromhex(value.decode()) for one in about for value in HEX32.findall(one)}
    public = next(event for event in events if event.kind == kinds.MANIFEST and event.tag("x") == request.plan.manifest)
    manifest = manifest_event.parse(public, None)

    true = Ticket.parse(done["ticket"])
    first, frames = guessed(market.folder / "blobs", manifest, true.params)
    found = openings(request, manifest, frames)
    published = {
        (fields[1], int(fields[2])): fields[4]
        for event in events
        if event.kind == kinds.result_of(kinds.INFERENCE) and event.tag("e") == request.id
        for fields in event.tags
        if fields[0] == "root"
    }
    assert published.keys() == found.keys()
    assert all(root.encode() in hexes for root in published.values())
    assert len(secrets) > 20

    # the guess is right: whoever has the salts can tell
    names = {public: name for name, public in market.public.items()}
    assert true.seal() == request.ticket
    assert content_of(first) in {content for _, _, content in true.inputs}
    for (task, chunk), opening in found.items():
        keys = market.keys(names[request.plan.assignment(task).provider])
        secret = salt_secret(keys, request.id, task, chunk, 0)
        assert opening.model_copy(update={"secret": secret}).root() == published[task, chunk]
        assert bytes.fromhex(published[task, chunk]) in roots_of(opening, {secret})  # so it would be found below

    # nobody else can
    secrets |= {bytes(32), b"\xff" * 32, hashlib.sha256(PROMPT.encode()).digest(), hashlib.sha256(b"").digest()}
    inputs = ((first.edge, 0, content_of(first)),)
    for salt in secrets:
        for params in (true.params, {}, {"max_tokens": 3}):
            assert (
                Ticket(request=request.id, params=params, salt=salt.hex(), inputs=inputs).seal().encode() not in hexes
            )
    for (task, chunk), opening in found.items():
        for root in roots_of(opening, secrets):
            leaf = ChunkRoot(request=request.id, task=task, chunk=chunk, attempt=0, root=root.hex()).leaf()
            assert not {root.hex().encode(), leaf.hex().encode(), merkle.root([leaf]).hex().encode()} & hexes
        for needle in needles(request, opening, first):
            assert not any(needle in dump for dump in dumps), needle[:16].hex()
