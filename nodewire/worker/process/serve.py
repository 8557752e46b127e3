"""The worker's loop: one call after the other, tensors in from one arena, out through the other. Torch lives here."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nodewire.core import heap
from nodewire.errors import BadFrame, NodewireError, NotAllowed, NotFound, OverMemory, TooLarge, WorkerFailed
from nodewire.kind import Actor, BatchActor, BlockActor, Limits, SizedActor
from nodewire.protocol.model.edge_codec import OWN, Coding, Codings
from nodewire.protocol.tensors.frame import ITEM_BYTES, MAX_TENSORS, MXINT8, Array, Frame, bytes_of
from nodewire.worker.ipc import message
from nodewire.worker.ipc.arena import Slabs
from nodewire.worker.process import edge_codec, libc
from nodewire.worker.sandbox import rights
from nodewire.worker.sandbox.rights import RESERVE_BYTES

MAX_PROGRAM_BYTES = 64 * 2**20
_PIECE_BYTES = RESERVE_BYTES // 16
_READ_BYTES = 65_536
_OUT_OF_MEMORY = ("can't allocate memory", "bad_alloc", "[enforce fail a", "could not create a primitive")
"""What torch's allocator says (its own message may find no memory to be whole), and oneDNN."""
_DTYPES = {name: getattr(torch, name) for name in ITEM_BYTES if name != MXINT8}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Load = Callable[[str, bytes, list[Path], Limits], Actor]


def torch_version() -> str:
    return str(torch.__version__)


def warm_up(limits: Limits) -> None:
    """Start the thread pools and the device before the caps, so that they are part of the baseline.

    On a GPU the cap is the allocator's own (private host memory stays uncapped: drivers map what they like).
    """
    torch.set_num_threads(limits.threads)
    square = torch.ones(512, 512, device=limits.device)
    (square @ square).add_(1).sum().item()
    torch.empty(1, device="meta") + 1  # imports what shape inference needs, while files can still be opened
    if limits.device == "cpu":
        _start_libraries()
        _start_products()
    if limits.device.startswith("cuda"):
        total = torch.cuda.get_device_properties(limits.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limits.memory_bytes / total), limits.device)
    del square
    heap.freeze()


def _start_libraries() -> None:
    """Libraries (oneDNN, MKL) keep buffers and generated code from their first use on, which torch does not count."""
    images = torch.ones(1, 4, 32, 32)
    with torch.no_grad():
        torch.nn.functional.conv2d(images, torch.ones(4, 4, 3, 3), padding=1)
        torch.nn.functional.gelu(images)
        torch.nn.functional.linear(images, torch.ones(32, 32), torch.ones(32))
        torch.nn.functional.scaled_dot_product_attention(images, images, images)
        half = images.bfloat16()
        half @ half


def _start_products() -> None:
    """MKL keeps the room in which it packs operands: this has it take what all products up to 4,096 wide need.

    In the kernel's own memory, since what malloc gets back in one piece changes what it does (`_some_memory`).
    """
    rows, width, columns = 512, 1_024, 4_096
    first, second, product = (
        torch.frombuffer(mmap.mmap(-1, 4 * m * n), dtype=torch.float32).view(m, n)
        for m, n in ((rows, width), (columns, width), (rows, columns))
    )
    torch.mm(first, second.t(), out=product)


class _Reserve:
    """RESERVE_BYTES that are kept from actors, so that after one has used up the cap an answer can still be written.

    They stay from one call to the next. Not where hardly more is left, for then what an earlier call kept fills the
    cap, and this one may be to free it: that is looked at before all calls but those on frames, which are promised no
    more than the cap.
    """

    def __init__(self) -> None:
        self._held: ExitStack | None = None

    def hold(self, *, may_free: bool) -> None:
        """Before a call."""
        if self._held is not None:
            if not may_free:
                return
            if (as_much := _mapped(RESERVE_BYTES)) is not None:
                as_much.close()
                return
            self.release()
        held = ExitStack()
        with suppress(RuntimeError):
            with _some_memory(2 * RESERVE_BYTES):
                pass
            held.enter_context(_some_memory(RESERVE_BYTES))
            self._held = held

    def release(self) -> None:
        """A call has failed: to say so may take it."""
        held, self._held = self._held, None
        if held is not None:
            held.close()


@contextmanager
def _some_memory(nbytes: int) -> Iterator[None]:
    """So much of the cap, untouched: the kernel's own, or where that is not to be had, pieces of a fragmented heap.

    It is not asked of malloc in one piece: whoever frees a large one has all later ones up to its size put on the heap
    (mallopt(3), M_MMAP_THRESHOLD), which then holds more than is in use. Nor in pieces while the heap has fewer: it
    would grow to the cap, and stay there. Raises RuntimeError: there is not so much.
    """
    memory = _mapped(nbytes)
    if memory is None and libc.give_back():
        memory = _mapped(nbytes)
    if memory is not None:
        with memory:
            yield
        return
    if libc.free_bytes() < nbytes:
        raise RuntimeError("not so much")
    pieces = [torch.empty(_PIECE_BYTES, dtype=torch.uint8) for _ in range(nbytes // _PIECE_BYTES)]
    try:
        yield
    finally:
        pieces.clear()


def _mapped(nbytes: int) -> mmap.mmap | None:
    try:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None


def _codings(said: dict[str, Any]) -> Codings:
    return {edge: tuple((own, sent) for own, sent in coding) for edge, coding in said.items()}


def _as_it_is(array: Array) -> Array:
    return array


class Server:
    """Answers the daemon on `channel` until it hangs up."""

    def __init__(self, channel: int, inward: mmap.mmap, outward: mmap.mmap, load: Load, limits: Limits) -> None:
        self._channel = channel
        self._inward_bytes, self._outward = memoryview(inward), outward
        self._slabs = Slabs(len(outward))
        self._reserve = _Reserve()
        self._load, self._limits = load, limits
        self._on_cpu = limits.device == "cpu"
        self._actors: dict[str, Actor] = {}
        self._taken_bytes: dict[str, tuple[int, int]] = {}
        """By task, what it holds, and what it takes besides to compute."""
        self._codings: dict[tuple[str, str], Codings] = {}
        """By task and session, what is narrowed."""
        self._inbox: deque[dict[str, Any]] = deque()
        self._bytes = b""
        """Of messages that are not whole yet."""
        self._unsent: int | None = None
        """The slab of a frame that is ready, and goes with the answer."""

    def run(self) -> None:
        while (call := self._next()) is not None:
            if "with" in call:
                self._answer_together(call)
            elif "id" in call:
                self._write(self._answer(call, self._serve))

    def _answer(self, call: dict[str, Any], serve: Callable[[dict[str, Any]], dict[str, Any]]) -> bytes:
        self._unsent = None
        self._reserve.hold(may_free=call["op"] != "receive")
        try:
            return message.pack({"id": call["id"], **serve(call)})
        except Exception as error:  # noqa: BLE001 - the caller is told what it was
            self._reserve.release()
            self._free(*(() if self._unsent is None else (self._unsent,)))
            return message.pack({"id": call["id"], "error": self._typed(call, error).as_dict()})

    def _answer_together(self, first: dict[str, Any]) -> None:
        """Calls of several sessions, computed as one and answered one by one; where that fails, each by itself."""
        calls = [{"op": "receive", "task": first["task"], **call} for call in (first, *first.pop("with"))]
        self._reserve.hold(may_free=False)
        try:
            actor = self._actors[first["task"]]
            assert isinstance(actor, BatchActor)
            found = actor.receive_together([(call["session"], list(self._frames(call))) for call in calls])
        except Exception:  # noqa: BLE001 - each call is answered alone, and says what it was
            self._reserve.release()
            for call in calls:
                self._write(self._answer(call, self._serve))
            return
        for call, outputs in zip(calls, found, strict=True):
            self._write(self._answer(call, partial(self._put_all, outputs=outputs)))

    def _serve(self, call: dict[str, Any]) -> dict[str, Any]:
        """What the answer has: `ok`, and the last frame with it where it is known to be the last."""
        op, task = call["op"], call["task"]
        if op == "load":
            weights = [Path(w) for w in call["weights"]]
            return {"ok": self._load_task(task, call["engine"], Path(call["program"]), weights, call["slots"])}
        actor = self._actors.get(task)
        if actor is None:
            raise NotFound("task", f"{task} is not loaded")
        match op:
            case "open":
                actor.open(call["session"], call["params"])
                self._codings[task, call["session"]] = _codings(call["codings"])
            case "receive":
                return {"ok": None, **self._receive(call, actor)}
            case "close":
                self._codings.pop((task, call["session"]), None)
                actor.close(call["session"])
            case "unload":
                del self._actors[task], self._taken_bytes[task], actor
                self._codings = {place: codings for place, codings in self._codings.items() if place[0] != task}
                gc.collect()
            case _:
                raise WorkerFailed("op", f"{op} is unknown")
        return {"ok": None}

    def _receive(self, call: dict[str, Any], actor: Actor) -> dict[str, Any]:
        """Give the actor a call's frames, and send what it makes of them; the last goes with the answer."""
        answer: dict[str, Any] = {}
        for frame in self._frames(call):
            if answer:
                self._write(message.pack({"id": call["id"], **answer}))
            answer = self._put_all(call, outputs=actor.receive(call["session"], frame))
            del answer["ok"]
        return answer

    def _frames(self, call: dict[str, Any]) -> Iterator[Frame[torch.Tensor]]:
        codings = self._codings.get((call["task"], call["session"]), OWN)
        for fields in call["frames"]:
            yield self._taken(message.take_frame(fields, self._inward_bytes, _as_it_is), codings)

    def _put_all(
        self, call: dict[str, Any], *, outputs: Sequence[Frame[torch.Tensor]] | NodewireError
    ) -> dict[str, Any]:
        """Send the outputs but the last, which is returned to go with the answer, if it is known to be the last."""
        if isinstance(outputs, NodewireError):
            raise outputs
        codings, last = self._codings.get((call["task"], call["session"]), OWN), None
        if isinstance(outputs, list) and outputs:
            outputs, last = outputs[:-1], outputs[-1]
        for output in outputs:
            self._put(call["id"], output, codings.get(output.edge))
        return {"ok": None} if last is None else {"ok": None, "frame": self._placed(last, codings.get(last.edge))}

    def _load_task(self, task: str, engine: str, program: Path, weights: list[Path], slots: int = 0) -> dict[str, int]:
        if task in self._actors:
            raise NotAllowed("task", f"{task} is loaded already")
        if (size := program.stat().st_size) > MAX_PROGRAM_BYTES:
            raise TooLarge("program", f"{size} bytes, at most {MAX_PROGRAM_BYTES}")
        before, started = self._memory(), time.monotonic()
        actor = self._load(engine, program.read_bytes(), weights, replace(self._limits, slots=slots))
        took = max(0, self._memory() - before)
        self._fits(task, (actor.held_bytes, actor.call_bytes) if isinstance(actor, SizedActor) else (took, 0))
        self._actors[task] = actor
        return {
            "memory_bytes": took,
            "load_ms": round((time.monotonic() - started) * 1000),
            "batches": int(actor.batches) if isinstance(actor, BatchActor) else 0,
            "block": actor.block if isinstance(actor, BlockActor) else 0,
        }

    def _fits(self, task: str, taken: tuple[int, int]) -> None:
        """Note what a task takes. Raises OverMemory: beside the others, each of which fits alone, no call might."""
        every = {**self._taken_bytes, task: taken}
        held = sum(holds for holds, _ in every.values())
        widest = max(every, key=lambda one: every[one][1])
        most = self._limits.memory_bytes + RESERVE_BYTES
        if len(every) > 1 and held + every[widest][1] > most:
            reason = f"{len(every)} tasks would hold {held} bytes, a call of {widest} takes {every[widest][1]} more"
            raise OverMemory(task, f"{reason}, and [worker] memory allows {self._limits.memory_bytes}")
        self._taken_bytes = every

    def _memory(self) -> int:
        on_device = self._limits.device.startswith("cuda")
        return torch.cuda.memory_allocated(self._limits.device) if on_device else rights.private_bytes()

    def _taken(self, frame: Frame[Array], codings: Codings) -> Frame[torch.Tensor]:
        """A frame in the arena as its actor is given it. Raises BadFrame, naming its edge."""
        coding = codings.get(frame.edge)
        try:
            edge_codec.check(frame, coding)
            own = [dtype for dtype, _ in coding] if coding else [array.dtype for array in frame.tensors]
            tensors = tuple(self._tensor(a, _DTYPES[dtype]) for a, dtype in zip(frame.tensors, own, strict=True))
        except BadFrame as error:
            raise BadFrame(frame.edge, str(error)) from error
        return Frame(frame.edge, frame.seq, tensors, frame.meta)

    def _tensor(self, array: Array, own: torch.dtype) -> torch.Tensor:
        """A private copy of `array` in the dtype `own` on the worker's device.

        The actor may keep it, the daemon reuses the slab. Raises BadFrame.
        """
        if array.dtype == MXINT8 and array.nbytes:
            raw = torch.frombuffer(array.data, dtype=torch.uint8).to(self._limits.device)
            return edge_codec.of_blocks(raw, array.shape, own)
        if array.dtype == MXINT8:
            return torch.empty(array.shape, dtype=own, device=self._limits.device)
        dtype = _DTYPES[array.dtype]
        if array.nbytes == 0:
            return torch.empty(array.shape, dtype=own, device=self._limits.device)
        if dtype is torch.bool:  # a peer's bytes other than 0 and 1 are undefined as bool
            return torch.frombuffer(array.data, dtype=torch.uint8).reshape(array.shape).ne(0).to(self._limits.device)
        found = torch.frombuffer(array.data, dtype=dtype).view(array.shape)
        return found.clone() if self._on_cpu and own is dtype else found.to(self._limits.device, own, copy=True)

    def _put(self, call: int, frame: Frame[torch.Tensor], coding: Coding | None) -> None:
        self._write(message.pack({"id": call, "frame": self._placed(frame, coding)}))
        self._unsent = None

    def _placed(self, frame: Frame[torch.Tensor], coding: Coding | None) -> dict[str, Any]:
        """Copy a frame's tensors into the outward arena: its wire form."""
        if len(frame.tensors) > MAX_TENSORS:
            raise TooLarge("frame", f"{len(frame.tensors)} tensors, at most {MAX_TENSORS}")
        for tensor in frame.tensors:
            if tensor.dtype not in _NAMES:
                raise WorkerFailed("dtype", f"{tensor.dtype} does not travel")
        sent = edge_codec.sent_dtypes(frame.edge, [_NAMES[t.dtype] for t in frame.tensors], coding)
        sizes = [bytes_of(dtype, t.shape) for dtype, t in zip(sent, frame.tensors, strict=True)]
        offsets, total = message.layout(sizes)
        slab = self._unsent = self._slab(total) if total else None
        base, placed = slab or 0, []
        for tensor, dtype, offset in zip(frame.tensors, sent, offsets, strict=True):
            if tensor.numel():
                room = self._outward_bytes(base + offset, bytes_of(dtype, tensor.shape))
                if dtype == MXINT8:
                    edge_codec.in_blocks(tensor, room)
                else:
                    room.view(_DTYPES[dtype]).view(tensor.shape).copy_(tensor.detach())
            placed.append((dtype, tuple(tensor.shape), base + offset))
        return message.put_frame(frame, slab, placed)

    def _outward_bytes(self, offset: int, count: int) -> torch.Tensor:
        return torch.frombuffer(self._outward, dtype=torch.uint8, count=count, offset=offset)

    def _slab(self, nbytes: int) -> int:
        """A slab of the outward arena; waits until the daemon has emptied enough of them."""
        if nbytes > self._slabs.size:
            raise TooLarge("frame", f"{nbytes} bytes, the arena has {self._slabs.size}")
        while (slab := self._slabs.allocate(nbytes)) is None:
            later = self._read()
            if later is None:
                raise SystemExit  # the daemon is gone
            if "id" in later:
                self._inbox.append(later)
        return slab

    def _free(self, *slabs: int) -> None:
        for slab in slabs:
            self._slabs.free(slab)

    def _typed(self, call: dict[str, Any], error: Exception) -> NodewireError:
        """What the daemon may tell a peer; the traceback stays in the worker's log."""
        if isinstance(error, NodewireError):
            return error
        traceback.print_exc()
        task, text = str(call["task"]), str(error)
        if (
            isinstance(error, MemoryError | torch.OutOfMemoryError)
            or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
            or (isinstance(error, RuntimeError) and any(said in text for said in _OUT_OF_MEMORY))
        ):
            return OverMemory(task, f"more than the {self._limits.memory_bytes} bytes that [worker] memory allows")
        return WorkerFailed(task, f"{type(error).__name__}: {text}"[:200])

    def _next(self) -> dict[str, Any] | None:
        return self._inbox.popleft() if self._inbox else self._read()

    def _read(self) -> dict[str, Any] | None:
        """The next message; slabs that the daemon has emptied are free again."""
        prefix = self._exactly(message.PREFIX.size)
        body = self._exactly(message.body_length(prefix)) if prefix else None
        if body is None:
            return None
        said = message.unpack(body)
        self._free(*said.get("free", ()), *said.get("slabs", ()))
        return said

    def _exactly(self, count: int) -> bytes | None:
        # os.read and os.write: the filter refuses the socket calls
        while len(self._bytes) < count:
            part = os.read(self._channel, _READ_BYTES)
            if not part:
                return None
            self._bytes += part
        found, self._bytes = self._bytes[:count], self._bytes[count:]
        return found

    def _write(self, data: bytes) -> None:
        written = os.write(self._channel, data)
        while written < len(data):
            data = data[written:]
            written = os.write(self._channel, data)
