"""A training computed again from its opened transcript: every outer step, and segments of the work behind it.

Blobs are fetched by the hashes that signed events cite and opened with the transcript's keys. The worker gets
plaintexts and hands back hashes; the first thing that does not hold in the chain of theta ends it, for nothing after it
can hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from nodewire.errors import BadData, NodewireError, NotFound, WorkerFailed
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.tensors.frame import Array, Frame, Meta
from nodewire.store import sealed_blobs
from nodewire.store.sealed_blobs import sealed_bytes
from nodewire.training.protocol import audit
from nodewire.worker.blob_feed import feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nodewire.kind import SharedWorker, TaskSession
    from nodewire.store.blobs import Blobs
    from nodewire.training.protocol.transcript import OuterStepRecord, WeighedResult
    from nodewire.training.verify.transcript import TrainingAudit

TASK = "auditor"
_SESSION = "transcript"
LOSS_OFF = 1_000
"""Losses of other machines are equal to one in so many."""

Segments = Literal["none", "drawn", "all"]


class RoundRecomputation:
    """Walks through a reading's rounds; faults are added to it. `worker` is started, and nothing is loaded."""

    def __init__(
        self,
        reading: TrainingAudit,
        worker: SharedWorker,
        blobs: Blobs,
        *,
        data: Path | None = None,
        start: Path | None = None,
        segments: Segments = "drawn",
    ) -> None:
        """`data` and `start` are the customer's files, if they are at hand."""
        self._reading = reading
        self._worker = worker
        self._session: TaskSession
        """Since it runs."""
        self._blobs = blobs
        self._data = data
        self._start = start
        self._segments = segments
        self._shard: int | None = None
        self.computed = 0
        """Results of which segments were computed again."""

    async def run(self, program: Path, on_round: Callable[[int], None] | None = None) -> None:
        """`program` is a file with the packed recipe.

        Raises:
            BadInput: the files at hand are not of this recipe, or it has an adapter and `start` is missing.
            BadData: the data at hand are not those that were trained on; nothing was computed again.
            WorkerFailed: computing broke off; nothing is said of the transcript.

        """
        transcript = self._reading.transcript
        files = [path for path in (self._data, self._start) if path is not None]
        await self._worker.load(TASK, TASK, program, files)
        given = {"data": self._data is not None, "start": self._start is not None}
        self._session = await self._worker.open(TASK, _SESSION, {"shards": transcript.shards, **given})
        if self._data is not None:
            for index in self._reading.data:
                await self._have_own(index)
        for made in transcript.rounds:
            if made.round == 0 and not await self._begin(made):
                return
            if not await self._round(made):
                return
            if on_round is not None:
                on_round(made.round)

    async def _begin(self, made: OuterStepRecord) -> bool:
        reading = self._reading
        first = made.results[0]
        ticket = reading.shards.get((first.request, first.provider))
        if ticket is None:
            reading.wrong("theta", "the transcript has no key to what it began with", 0)
            return False
        try:
            begun = reading.requests[first.request]
            path = await self._blobs.get(begun.round.theta, self._most_bytes(), inline=begun.theta)
            (said,) = await self._put("begin", sealed_blobs.unseal(path, ticket.theta_key), {}, made.before)
        except WorkerFailed:
            raise
        except NodewireError as error:
            reading.wrong("theta", f"what it began with: {error}", 0)
            return False
        reading.held["theta"] = reading.held.get("theta", 0) + 1
        if not said.meta["initial"]:
            reading.wrong("theta", "it did not begin with what the recipe draws", 0)
        return True

    async def _round(self, made: OuterStepRecord) -> bool:
        for one in made.results:
            if not await self._update(one):
                return False
        if self._segments != "none":
            for at, one in enumerate(made.results):
                await self._check(at, one)
        (said,) = await self._say(Frame("step", made.round))
        self._reading.held["theta"] = self._reading.held.get("theta", 0) + 1
        loss = said.meta["loss"]
        if isinstance(loss, int) and loss >= 0:
            self._reading.held["loss"] = self._reading.held.get("loss", 0) + 1
            if abs(loss - made.loss) * LOSS_OFF > max(loss, LOSS_OFF):
                self._reading.wrong("loss", f"{made.loss} millionths held out, computed {loss}", made.round)
        if said.meta["sha256"] != made.after:
            self._reading.wrong("theta", "the outer step gives other weights", made.round)
            return False
        return True

    async def _update(self, one: WeighedResult) -> bool:
        """Whether the worker has the result, so that the chain can go on."""
        reading, key = self._reading, (one.request, one.provider)
        meta: Meta = {
            "index": one.index,
            "round": one.round,
            "steps": one.steps,
            "weight": one.weight,
        }
        reading.held["update"] = reading.held.get("update", 0) + 1
        try:
            if key not in reading.opened:
                raise NotFound("result", "the transcript has no key to it")
            opening = reading.opened[key]
            delivered = reading.results[key]
            path = await self._blobs.get(delivered.blob, self._most_bytes(), inline=delivered.result)
            (said,) = await self._put("update", sealed_blobs.unseal(path, opening.key), meta, opening.sha256)
        except WorkerFailed:
            raise
        except NodewireError as error:
            reading.wrong("update", f"{error.code}: {error}", one.round, one.provider)
            return False
        if not said.meta["fine"]:
            reading.wrong("update", str(said.meta["reason"]), one.round, one.provider)
            return False
        return True

    async def _check(self, at: int, one: WeighedResult) -> None:
        """Compute segments of a result again: those drawn, from what was shown, or all."""
        reading, key = self._reading, (one.request, one.provider)
        try:
            await self._have_shard(one)
            drawn: tuple[int, ...] = ()
            shown = reading.shown[key].shown if key in reading.shown else ()
            if self._segments == "drawn" and shown:
                drawn = reading.drawn(*key)
            else:  # of what was carried into the round nobody else can know
                shown = tuple(one for one in shown if one.segment == len(reading.opened[key].states))
            for snapshot in shown:
                path = await self._blobs.get(snapshot.blob, self._most_bytes())
                pieces = sealed_blobs.unseal(path, snapshot.key)
                await self._put("shown", pieces, {"at": at, "segment": snapshot.segment}, snapshot.sha256)
        except WorkerFailed:
            raise
        except NodewireError as error:
            reading.wrong("segment", f"cannot be computed again: {error.code}: {error}", one.round, one.provider)
            return
        states = b"".join(map(bytes.fromhex, reading.opened[key].states))
        meta: Meta = {
            "at": at,
            "states": states,
            "drawn": ",".join(map(str, drawn)),
            "begun": reading.shards[key].carried or "" if key in reading.shards else "",
            "carried": reading.opened[key].carried or "",
        }
        (said,) = await self._say(Frame("segments", 0, (), meta))
        self.computed += 1
        reading.held["segment"] = reading.held.get("segment", 0) + (len(drawn) or len(states) // 32)
        segment = said.meta["segment"]
        if isinstance(segment, int) and segment >= 0:
            reading.wrong("segment", str(said.meta["reason"]), one.round, one.provider, segment)

    async def _have_shard(self, one: WeighedResult) -> None:
        """The worker has the result's shard: of the data at hand, or from the stores. Raises NodewireError."""
        if self._shard == one.index:
            return
        ticket = self._reading.data.get(one.index)
        assigned = self._reading.requests[one.request].round.find_assignment(one.provider)
        if ticket is None or assigned is None:
            raise NotFound("shard", "the transcript has no key to it")
        if self._data is not None:
            await self._have_own(one.index)
        else:
            path = await self._blobs.get(BlobRef(sha256=assigned.data.sha256, bytes=assigned.data.bytes))
            await self._put(
                "shard", sealed_blobs.unseal(path, ticket.shard_key), {"index": one.index}, ticket.shard_sha256
            )
        self._shard = one.index

    async def _have_own(self, index: int) -> None:
        """The worker has a shard of the data at hand. Raises BadData: another one was trained on."""
        (said,) = await self._say(Frame("own", 0, (), {"index": index}))
        if said.meta["sha256"] != self._reading.data[index].shard_sha256:
            raise BadData("--data", "these are not the data that were trained on; nothing was computed again")

    def _most_bytes(self) -> int:
        """Of a ciphertext of weights, snapshots or an update: what a transcript cites may be anything."""
        recipe = self._reading.recipe
        assert recipe is not None
        return sealed_bytes(audit.most_bytes(recipe))

    async def _say(self, frame: Frame[Array]) -> list[Frame[Array]]:
        return await self._session.receive(frame)

    async def _put(self, edge: str, pieces: Iterator[bytes], meta: Meta, sha256: str) -> list[Frame[Array]]:
        return await feed(self._session, edge, pieces, sha256, meta)
