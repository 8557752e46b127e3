"""The customer's own worker, from outside: it splits data, holds the weights, judges results and makes outer steps.

Nothing here knows what the bytes are; they come and go in pieces, and leave this machine sealed.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nodewire.errors import NodewireError, NotFound, WorkerFailed
from nodewire.protocol.model import inline_blob
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.tensors.frame import Array, Frame, Meta
from nodewire.store import sealed_blobs
from nodewire.training.customer.machine.events import CiphertextRef, Contribution
from nodewire.worker.blob_feed import feed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence

    from nodewire.kind import SharedWorker, TaskSession
    from nodewire.store.blobs import Blobs
    from nodewire.training.protocol.audit import SnapshotCiphertext
    from nodewire.training.protocol.result import DeliveryDetails

TASK = "coordinator"
_SESSION = "training"


async def read(worker: SharedWorker, program: Path, data: Path, shards: int, start: Path | None) -> TaskSession:
    """Have a worker read what `Coordinator.open` says; `program` has the recipe. Raises as the worker does."""
    await worker.load(TASK, TASK, program, [data, *([start] if start else [])])
    return await worker.open(TASK, _SESSION, {"shards": shards})


class Verdict(NamedTuple):
    """`doubted`: it is accepted if more of it stands an audit; `harms`: and is no part of the weights before."""

    accepted: bool
    reason: str
    doubted: bool = False
    harms: bool = False


@dataclass(frozen=True, slots=True)
class Past:
    """A result that was accepted, and what its round began with: the update's sealed file, and theta."""

    round: int
    index: int
    steps: int
    update: Path
    opened: DeliveryDetails
    theta: CiphertextRef
    begun: str | None = None
    """The digest of what its provider has carried into the round."""


@dataclass(frozen=True, slots=True)
class LateResult:
    """Whose request a late result answers, and in which round it was trained."""

    request: str
    round: int


class Coordinator:
    """One training's worker. Every method raises what the worker does: BadData, WorkerFailed ..."""

    def __init__(self, worker: SharedWorker, blobs: Blobs, folder: Path) -> None:
        """`folder`: of the training; what must not be lost and is nobody else's stands there."""
        self._worker = worker
        self._session: TaskSession
        """Since it was opened."""
        self._blobs = blobs
        self._folder = folder
        self._auditing = asyncio.Lock()
        self._judging = asyncio.Lock()

    async def open(self, recipe: bytes, data: Path, shards: int, start: Path | None = None) -> None:
        """Read the customer's data and split them, and `start`, the files that the recipe cites.

        Weights are as before the first round.
        """
        program = self._folder / "recipe"
        program.write_bytes(recipe)
        self._session = await read(self._worker, program, data, shards, start)

    async def shard(self, index: int) -> CiphertextRef:
        """A shard, sealed and uploaded."""
        return await self._seal(await self._pieces("shard", {"index": index}))

    async def theta(self) -> CiphertextRef:
        """The weights as they are, sealed; uploaded, if they are too large to stand in requests."""
        return await self._seal(await self._pieces("theta", {}), most_inline=inline_blob.MAX_BYTES)

    async def start(self) -> CiphertextRef:
        """What stays frozen, sealed and uploaded."""
        return await self._seal(await self._pieces("start", {}))

    async def model(self) -> dict[str, bytes]:
        """What was trained so far as the files of a Hugging Face folder, by name; adapters are merged into it."""
        frames = await self._session.receive(Frame("model", 0))
        parts: dict[str, list[bytes]] = {}
        for frame in frames:
            parts.setdefault(str(frame.meta["name"]), []).append(bytes(frame.tensors[0].data))
        return {name: b"".join(pieces) for name, pieces in parts.items()}

    async def weights(self) -> bytes:
        """The weights as they are: a safetensors file."""
        return b"".join(await self._pieces("theta", {}))

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """While no audit and no late judgement is under way in the worker."""
        async with self._auditing, self._judging:
            yield

    async def restore(self, theta: CiphertextRef, round_: int) -> None:
        """Go on with what was the weights, and the outer optimizer's momenta, before `round_`.

        What the worker knew of that round and of later ones is forgotten.

        Raises:
            NotFound: the momenta are not in the training's folder any more.

        """
        path = await self._blobs.get(BlobRef(sha256=theta.sha256, bytes=theta.bytes))
        await self._put("restore", path, theta.key, {"what": "theta", "round": round_}, theta.plain_sha256)
        if not round_:
            return  # there are none before the first
        momenta = self._momenta(round_)
        if not momenta.exists():
            raise NotFound("momenta", f"{momenta} is gone")
        await self._put("restore", momenta.read_bytes(), None, {"what": "momenta"}, None)

    async def result(
        self,
        round_: int,
        index: int,
        steps: int,
        source: Path | bytes,
        key: str,
        sha256: str,
        late: LateResult | None = None,
    ) -> tuple[bool, str]:
        """Take the packed update, sealed, in a file or as it is: whether it is one of this recipe, and if not, why."""
        meta: Meta = {"round": round_, "index": index, "steps": steps}
        if late is not None:
            meta = {**meta, "request": late.request}
        try:
            said = await self._put("result" if late is None else "late", source, key, meta, sha256)
        except WorkerFailed:
            raise
        except NodewireError as error:  # of whoever made the result
            return False, f"{error.code}: {error}"[:200]
        if not said or said[0].edge != "received":
            raise WorkerFailed("result", "no answer")
        return bool(said[0].meta["fine"]), str(said[0].meta["reason"])

    async def judge(self, round_: int, waiting: Iterable[int]) -> dict[int, Verdict]:
        """Of every result of the round by its shard: whether it is accepted, and if not, why.

        All but those that are `waiting` were accepted before; they are there to compare with.
        """
        meta: Meta = {"round": round_, "waiting": ",".join(map(str, waiting))}
        said = await self._session.receive(Frame("judge", 0, (), meta))
        return {int(one.meta["index"] or 0): _verdict(one) for one in said}

    async def judge_late(self, late: LateResult, index: int, theta: CiphertextRef, *, alone: bool = False) -> Verdict:
        """Whether a late result is accepted, by the weights that its own round began with.

        `alone`: not beside others of that number, which began with other weights.
        """
        path = await self._blobs.get(BlobRef(sha256=theta.sha256, bytes=theta.bytes))
        async with self._judging:
            await self._put("late.theta", path, theta.key, {"round": late.round}, theta.plain_sha256)
            meta: Meta = {"request": late.request, "index": index, "alone": alone}
            (said,) = await self._session.receive(Frame("late.judge", 0, (), meta))
        return _verdict(said)

    async def audit(
        self,
        past: Past,
        drawn: Sequence[int],
        shown: Mapping[int, tuple[Path, SnapshotCiphertext]],
        is_undone: Callable[[], bool],
    ) -> tuple[bool, str]:
        """Compute what was drawn again from the snapshots in these files: whether it agrees, and if not, why.

        Of a round that `is_undone` by now the worker may know another of the same number.
        """
        at: Meta = {"round": past.round, "index": past.index, "update": past.opened.sha256}
        async with self._auditing:
            alone = is_undone()
            (said,) = await self._session.receive(Frame("holds", 0, (), at))
            if alone or not said.meta["holds"]:
                await self._recall(past)
            try:
                for segment, (path, what) in shown.items():
                    await self._put("shown", path, what.key, {"segment": segment}, what.sha256)
            except WorkerFailed:
                raise
            except NodewireError as error:
                return False, f"{error.code}: {error}"[:200]
            meta: Meta = {
                **at,
                "states": b"".join(map(bytes.fromhex, past.opened.states)),
                "drawn": ",".join(map(str, drawn)),
                "alone": alone,
                "begun": past.begun or "",
                "carried": past.opened.carried or "",
            }
            (said,) = await self._session.receive(Frame("audit", 0, (), meta))
        return bool(said.meta["accepted"]), str(said.meta["reason"])

    async def _recall(self, past: Past) -> None:
        """Give the worker again what it has forgotten: of one result, until the next is recalled."""
        theta = past.theta
        path = await self._blobs.get(BlobRef(sha256=theta.sha256, bytes=theta.bytes))
        meta: Meta = {"round": past.round, "index": past.index, "steps": past.steps}
        await self._put("recall.theta", path, theta.key, meta, theta.plain_sha256)
        await self._put("recall.update", past.update, past.opened.key, meta, past.opened.sha256)

    async def step(self, round_: int, counted: Sequence[Contribution] | None = None) -> int:
        """The outer step of these results, or all of the round; the held-out loss after it, in millionths."""
        meta: Meta = {} if counted is None else {"counted": _which(round_, counted)}
        (said,) = await self._session.receive(Frame("step", round_, (), meta))
        return await self._stepped(round_, said)

    async def momenta(self) -> CiphertextRef:
        """The outer optimizer's momenta as they are, sealed and uploaded."""
        return await self._seal(await self._pieces("momenta", {}))

    async def bought(self, what: str, path: Path, key: str, sha256: str) -> None:
        """Take theta or momenta after a step of another's. Raises BadCiphertext, BadHash, TooLarge: its fault."""
        await self._put("bought", path, key, {"what": what}, sha256)

    async def check(
        self, round_: int, counted: Sequence[Contribution], seed: bytes, root: str
    ) -> tuple[bool, str, int]:
        """Take a bought step over if it is right: whether it is, if not, why, and the held-out loss in millionths."""
        meta: Meta = {"round": round_, "counted": _which(round_, counted), "seed": seed, "root": root}
        (said,) = await self._session.receive(Frame("check", 0, (), meta))
        if not said.meta["fine"]:
            return False, str(said.meta["reason"]), 0
        return True, "", await self._stepped(round_, said)

    async def _stepped(self, round_: int, said: Frame[Array]) -> int:
        """Keep the momenta for a crash; the loss that was said."""
        loss = said.meta["loss"]
        if not isinstance(loss, int):
            raise WorkerFailed("step", "an answer that is none")
        momenta = b"".join(await self._pieces("momenta", {}))
        self._momenta(round_ + 1).write_bytes(momenta)
        return loss

    def forget(self, oldest: int) -> None:
        """Steps before that of round `oldest` are never undone.

        Momenta of the round before it stay: after a power failure the journal may not know of the newest step.
        """
        for path in self._folder.glob("momenta-*.safetensors"):
            number = path.stem.removeprefix("momenta-")
            if number.isdecimal() and int(number) < oldest - 1:
                path.unlink(missing_ok=True)

    def _momenta(self, round_: int) -> Path:
        return self._folder / f"momenta-{round_}.safetensors"

    async def _pieces(self, edge: str, meta: Meta) -> Sequence[bytes]:
        frames = await self._session.receive(Frame(edge, 0, (), meta))
        return [bytes(frame.tensors[0].data) for frame in frames]

    async def _put(
        self, edge: str, source: Path | bytes, key: str | None, meta: Meta, sha256: str | None
    ) -> list[Frame[Array]]:
        """What is sealed under `key`, or bytes as they are, into the worker; what it answers. Raises as `feed`."""
        pieces = iter([source]) if key is None and isinstance(source, bytes) else sealed_blobs.unseal(source, key or "")
        total = sealed_blobs.size_of(source)
        return await feed(self._session, edge, pieces, sha256, meta, total=total)

    async def _seal(self, pieces: Sequence[bytes], *, most_inline: int = 0) -> CiphertextRef:
        key, digest = sealed_blobs.new_key(), hashlib.sha256()
        if sealed_blobs.sealed_bytes(sum(map(len, pieces))) <= most_inline:
            whole = b"".join(pieces)
            ref = self._blobs.keep(b"".join(sealed_blobs.seal([whole], key)))
            return CiphertextRef(ref.sha256, ref.bytes, key, hashlib.sha256(whole).hexdigest())
        with tempfile.NamedTemporaryFile(dir=self._folder) as file:
            for piece in pieces:
                digest.update(piece)
            for segment in sealed_blobs.seal(pieces, key):
                file.write(segment)
            file.flush()
            ref = await self._blobs.put(Path(file.name))
        return CiphertextRef(ref.sha256, ref.bytes, key, digest.hexdigest())


def _which(round_: int, counted: Sequence[Contribution]) -> str:
    """What a step is made of, as the worker reads it."""
    return ",".join(f"{one.index}:{one.request if one.round < round_ else ''}" for one in counted)


def _verdict(said: Frame[Array]) -> Verdict:
    meta = said.meta
    return Verdict(bool(meta["accepted"]), str(meta["reason"]), bool(meta["doubted"]), bool(meta["harms"]))
