"""The worker's loop: one call after the other, tensors in from one arena, out through the other. Torch lives here."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from nodewire.errors import NodewireError, NotAllowed, NotFound, OverMemory, TooLarge, WorkerFailed
from nodewire.kind import Actor, Limits
from nodewire.protocol.codec import OWN, Coding, Codings
from nodewire.protocol.frame import ITEM_BYTES, MAX_TENSORS, MXINT8, Array, Frame, bytes_of
from nodewire.worker import message, narrowing, rights
from nodewire.worker.arena import Slabs

MAX_PROGRAM_BYTES = 64 * 2**20
RESERVE_BYTES = 4 * 2**20
"""On top of the cap, for reading calls and writing answers; actors do not get it."""
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
    if limits.device == "cpu":
        _start_libraries()
    if limits.device.startswith("cuda"):
        total = torch.cuda.get_device_properties(limits.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limits.memory_bytes / total), limits.device)
    del square
    gc.collect()


def _start_libraries() -> None:
    """oneDNN and MKL keep buffers and generated code from their first use on, which torch does not count."""
    images = torch.ones(1, 4, 32, 32)
    with torch.no_grad():
        torch.nn.functional.conv2d(images, torch.ones(4, 4, 3, 3), padding=1)
        torch.nn.functional.gelu(images)
        torch.nn.functional.linear(images, torch.ones(32, 32), torch.ones(32))
        torch.nn.functional.scaled_dot_product_attention(images, images, images)
        half = images.bfloat16()
        half @ half


@contextmanager
def _held_back() -> Iterator[None]:
    """Keep RESERVE_BYTES from the actor, so that after it has used up the cap an answer can still be written.

    Not where hardly more is left: then what an earlier call kept fills the cap, and this one may be to free it.
    """
    try:
        reserve, room = _some_memory(), _some_memory()
        del room
    except RuntimeError:
        yield
        return
    try:
        yield
    finally:
        del reserve


def _some_memory() -> list[torch.Tensor]:
    """RESERVE_BYTES, untouched, in pieces that fit into a fragmented heap as well."""
    return [torch.empty(RESERVE_BYTES // 16, dtype=torch.uint8) for _ in range(16)]


def _codings(said: dict[str, Any]) -> Codings:
    return {edge: tuple((own, sent) for own, sent in coding) for edge, coding in said.items()}


def _as_it_is(array: Array) -> Array:
    return array


class Server:
    """Answers the daemon on `channel` until it hangs up."""

    def __init__(self, channel: int, inward: mmap.mmap, outward: mmap.mmap, load: Load, limits: Limits) -> None:
        self._channel = channel
        self._inward, self._outward = inward, outward
        self._slabs = Slabs(len(outward))
        self._load, self._limits = load, limits
        self._actors: dict[str, Actor] = {}
        self._codings: dict[tuple[str, str], Codings] = {}
        """By task and session, what is narrowed."""
        self._inbox: deque[dict[str, Any]] = deque()

    def run(self) -> None:
        while (call := self._next()) is not None:
            if "id" not in call:
                self._slabs.free(call["slab"])
                continue
            self._send({"id": call["id"], **self._answer(call)})

    def _answer(self, call: dict[str, Any]) -> dict[str, Any]:
        try:
            with _held_back():
                return {"ok": self._serve(call)}
        except Exception as error:
            return {"error": self._typed(call, error).as_dict()}

    def _serve(self, call: dict[str, Any]) -> dict[str, int] | None:
        op, task = call["op"], call["task"]
        if op == "load":
            return self._load_task(task, call["engine"], Path(call["program"]), [Path(w) for w in call["weights"]])
        actor = self._actors.get(task)
        if actor is None:
            raise NotFound("task", f"{task} is not loaded")
        match op:
            case "open":
                actor.open(call["session"], call["params"])
                self._codings[task, call["session"]] = _codings(call["codings"])
            case "receive":
                codings = self._codings.get((task, call["session"]), OWN)
                frame = self._taken(message.take_frame(call["frame"], memoryview(self._inward), _as_it_is), codings)
                for output in actor.receive(call["session"], frame):
                    self._put(call["id"], output, codings.get(output.edge))
            case "close":
                self._codings.pop((task, call["session"]), None)
                actor.close(call["session"])
            case _:
                raise WorkerFailed("op", f"{op} is unknown")
        return None

    def _load_task(self, task: str, engine: str, program: Path, weights: list[Path]) -> dict[str, int]:
        if task in self._actors:
            raise NotAllowed("task", f"{task} is loaded already")
        if (size := program.stat().st_size) > MAX_PROGRAM_BYTES:
            raise TooLarge("program", f"{size} bytes, at most {MAX_PROGRAM_BYTES}")
        before, started = self._memory(), time.monotonic()
        self._actors[task] = self._load(engine, program.read_bytes(), weights, self._limits)
        return {
            "memory_bytes": max(0, self._memory() - before),
            "load_ms": round((time.monotonic() - started) * 1000),
        }

    def _memory(self) -> int:
        on_device = self._limits.device.startswith("cuda")
        return torch.cuda.memory_allocated(self._limits.device) if on_device else rights.private_bytes()

    def _taken(self, frame: Frame[Array], codings: Codings) -> Frame[torch.Tensor]:
        """A frame in the arena as its actor is given it. Raises BadFrame."""
        coding = codings.get(frame.edge)
        narrowing.check(frame, coding)
        own = [dtype for dtype, _ in coding] if coding else [array.dtype for array in frame.tensors]
        tensors = tuple(self._tensor(a, _DTYPES[dtype]) for a, dtype in zip(frame.tensors, own, strict=True))
        return Frame(frame.edge, frame.seq, tensors, frame.meta)

    def _tensor(self, array: Array, own: torch.dtype) -> torch.Tensor:
        """A private copy of `array` in the dtype `own` on the worker's device: the actor may keep it, the daemon reuses
        the slab. Raises BadFrame."""
        if array.dtype == MXINT8 and array.nbytes:
            raw = torch.frombuffer(array.data, dtype=torch.uint8).to(self._limits.device)
            return narrowing.of_blocks(raw, array.shape, own)
        if array.dtype == MXINT8:
            return torch.empty(array.shape, dtype=own, device=self._limits.device)
        dtype = _DTYPES[array.dtype]
        if array.nbytes == 0:
            return torch.empty(array.shape, dtype=own, device=self._limits.device)
        if dtype is torch.bool:  # a peer's bytes other than 0 and 1 are undefined as bool
            return torch.frombuffer(array.data, dtype=torch.uint8).reshape(array.shape).ne(0).to(self._limits.device)
        return torch.frombuffer(array.data, dtype=dtype).reshape(array.shape).to(self._limits.device, own, copy=True)

    def _put(self, call: int, frame: Frame[torch.Tensor], coding: Coding | None) -> None:
        if len(frame.tensors) > MAX_TENSORS:
            raise TooLarge("frame", f"{len(frame.tensors)} tensors, at most {MAX_TENSORS}")
        for tensor in frame.tensors:
            if tensor.dtype not in _NAMES:
                raise WorkerFailed("dtype", f"{tensor.dtype} does not travel")
        sent = narrowing.sent_dtypes(frame.edge, [_NAMES[t.dtype] for t in frame.tensors], coding)
        sizes = [bytes_of(dtype, t.shape) for dtype, t in zip(sent, frame.tensors, strict=True)]
        offsets, total = message.layout(sizes)
        slab = self._slab(total) if total else None
        base, placed = slab or 0, []
        for tensor, dtype, offset in zip(frame.tensors, sent, offsets, strict=True):
            if tensor.numel():
                room = self._outward_bytes(base + offset, bytes_of(dtype, tensor.shape))
                if dtype == MXINT8:
                    narrowing.in_blocks(tensor, room)
                else:
                    room.view(_DTYPES[dtype]).view(tensor.shape).copy_(tensor.detach())
            placed.append((dtype, tuple(tensor.shape), base + offset))
        try:
            self._send({"id": call, "frame": message.put_frame(frame, slab, placed)})
        except NodewireError:
            if slab is not None:
                self._slabs.free(slab)
            raise

    def _outward_bytes(self, offset: int, count: int) -> torch.Tensor:
        return torch.frombuffer(self._outward, dtype=torch.uint8, count=count, offset=offset)

    def _slab(self, nbytes: int) -> int:
        """A slab of the outward arena; waits until the daemon has emptied enough of them."""
        if nbytes > self._slabs.size:
            raise TooLarge("frame", f"{nbytes} bytes, the arena has {self._slabs.size}")
        while (slab := self._slabs.take(nbytes)) is None:
            later = self._read()
            if later is None:
                raise SystemExit  # the daemon is gone
            if "id" in later:
                self._inbox.append(later)
            else:
                self._slabs.free(later["slab"])
        return slab

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
        prefix = self._exactly(message.PREFIX.size)
        body = self._exactly(message.body_length(prefix)) if prefix else None
        return message.unpack(body) if body else None

    def _exactly(self, count: int) -> bytes | None:
        # os.read and os.write: the filter refuses the socket calls
        parts = []
        while count:
            part = os.read(self._channel, count)
            if not part:
                return None
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _send(self, answer: dict[str, Any]) -> None:
        view = memoryview(message.pack(answer))
        while view:
            view = view[os.write(self._channel, view) :]
