"""How fast a loaded task is: calls of its own shapes, timed as the daemon sees them, the worker's pipe included.

A probe's frames are made of what the manifest says of the task's edges, so that anything that can be served can be
measured: floats near 0, integers 0, masks true. The session is the probe's own, and closed before a customer's opens.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from nodewire.errors import BadInput, NodewireError
from nodewire.plan.cost import Work
from nodewire.protocol.tensors.frame import ITEM_BYTES, Array, Frame, Meta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.kind import Params, Worker
    from nodewire.protocol.model.manifest import Edge, Manifest, Task, Tensor

SESSION = "0" * 64
CALLS = 5
CLAIMED_AT = 64
"""Positions a call for which ads claim a speed, where a task takes so many; a decoder's is for one at a time."""
_PROMPT = 4
"""Tokens of the prompt before a driver's or stage's timed steps."""
_MOST_BYTES = 32 * 2**20
"""Of one call's inputs."""
_TEXT = "a sentence of some ordinary words "


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """`positions` at once take `us` microseconds in the middle of `CALLS` calls, after one that does not count."""

    positions: int
    us: float
    work: Work

    @property
    def us_per_position(self) -> int:
        return max(1, round(self.us / self.positions))


async def measure(manifest: Manifest, name: str, worker: Worker, loaded: str, positions: int = 1) -> ProbeResult:
    """Time task `name`, which `worker` holds as `loaded`, at about `positions` (tokens, rows, ids) a call.

    Raises:
        BadInput: the task takes nothing of this size; the limit is named. Or its edges are not what a probe is made of.
        NodewireError: as the worker's calls.

    """
    task = manifest.task(name)
    if positions < 1:
        raise BadInput("positions", "below 1")
    calls = _of_engine(manifest, task, positions)
    params: Params = {"max_tokens": CALLS + 2} if task.engine.startswith("decoder") else {}
    took: list[float] = []
    session = await worker.open(loaded, SESSION, params)
    try:
        for warm_up in calls.before:
            await session.receive(warm_up)
        for frames in calls.timed:
            began_s = asyncio.get_running_loop().time()
            for frame in frames:
                await session.receive(frame)
            took.append(asyncio.get_running_loop().time() - began_s)
    except NodewireError as error:
        if not took or error.code != "not-allowed":  # a driver may end its session at any token
            raise
    finally:
        await session.close()
    first, *rest = took
    weights = sum(blob.bytes for blob in task.weights)
    moved = sum(array.nbytes for frame in calls.timed[0] for array in frame.tensors)
    return ProbeResult(
        calls.positions, median(rest or [first]) * 1e6, Work(task.flops * calls.positions, weights + moved)
    )


def sizes(manifest: Manifest, name: str) -> tuple[int, ...]:
    """Positions a call that are worth measuring: 1, 4, 16 ... up to what the task takes. Raises BadInput."""
    task = manifest.task(name)
    found, most = [1], _most(manifest, task)
    while found[-1] * 4 <= most:
        found.append(found[-1] * 4)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Calls:
    positions: int
    before: Sequence[Frame[Array]]
    timed: Sequence[Sequence[Frame[Array]]]


def _of_engine(manifest: Manifest, task: Task, positions: int) -> _Calls:
    if task.engine == "decoder.driver":
        return _driver_calls(manifest, task)
    if task.engine == "decoder.stage":
        return _stage_calls(manifest, task, positions)
    if task.engine == "encoder.driver":
        return _text_calls(manifest, task, positions)
    return _graph_calls(manifest, task, positions)


def _most(manifest: Manifest, task: Task) -> int:
    if task.engine == "decoder.driver":
        return 1
    if task.engine == "decoder.stage":
        return max(1, (manifest.context or 1_024) // (CALLS + 2))
    if task.engine == "encoder.driver":
        return 64
    return math.prod(_dims(manifest.inputs(task.name)).values())


def _driver_calls(manifest: Manifest, task: Task) -> _Calls:
    """A prompt, then returns from the last stage, each of which becomes a token."""
    prompt, back = _input(manifest, task), _input(manifest, task, back=True)
    ids = Array("int64", (_PROMPT,), bytes(8 * _PROMPT))
    steps = []
    for k in range(CALLS + 1):
        hidden = _array(_tensor(back), dict.fromkeys(back.dims, 1), seed=k)
        steps.append([Frame(back.name, k, (hidden,), {"pos": _PROMPT + k - 1, "chunk": 0})])
    return _Calls(1, [Frame(prompt.name, 0, (ids,), {"chunk": 0})], steps)


def _stage_calls(manifest: Manifest, task: Task, positions: int) -> _Calls:
    edge = _input(manifest, task)
    if positions > _most(manifest, task):
        raise BadInput("positions", f"{positions}; {task.name} is measured with up to {_most(manifest, task)}")
    prompt = _array(_tensor(edge), dict.fromkeys(edge.dims, _PROMPT), seed=0)
    frames = []
    for k in range(CALLS + 1):
        hidden = _array(_tensor(edge), dict.fromkeys(edge.dims, positions), seed=k)
        frames.append([Frame(edge.name, k + 1, (hidden,), {"pos": _PROMPT, "chunk": 0})])
    return _Calls(positions, [Frame(edge.name, 0, (prompt,), {"pos": 0, "chunk": 0})], frames)


def _text_calls(manifest: Manifest, task: Task, positions: int) -> _Calls:
    edge = _input(manifest, task)
    data = json.dumps([_TEXT] * positions).encode()
    texts = Array("uint8", (len(data),), data)
    return _Calls(positions, [], [[Frame(edge.name, k, (texts,), {"chunk": k})] for k in range(CALLS + 1)])


def _graph_calls(manifest: Manifest, task: Task, positions: int) -> _Calls:
    edges = manifest.inputs(task.name)
    _input(manifest, task)
    dims = _dims(edges)
    chosen, left = {}, positions
    for name in reversed(list(dims)):  # the batch stands first: long rows before many
        chosen[name] = min(dims[name], max(1, left))
        left //= chosen[name]
    if left > 1:
        raise BadInput("positions", f"{positions}; {task.name} takes up to {math.prod(dims.values())} a call")
    total = sum(_nbytes(tensor, chosen) for edge in edges for tensor in edge.tensors)
    if total > _MOST_BYTES:
        raise BadInput("positions", f"{positions} are {total} bytes of input, a probe sends up to {_MOST_BYTES}")
    arrays = {
        edge.name: tuple(_array(tensor, chosen, seed=k) for k, tensor in enumerate(edge.tensors)) for edge in edges
    }
    meta: list[Meta] = [{"chunk": k} for k in range(CALLS + 1)]
    frames = [[Frame(edge, k, tensors, meta[k]) for edge, tensors in arrays.items()] for k in range(CALLS + 1)]
    return _Calls(math.prod(chosen.values()), [], frames)


def _input(manifest: Manifest, task: Task, *, back: bool = False) -> Edge:
    """The first of the task's inputs. Raises BadInput: it has none."""
    found = next((edge for edge in manifest.inputs(task.name) if edge.back == back), None)
    if found is None:
        raise BadInput(task.name, "has no edge that leads to it" + " back" * back)
    return found


def _tensor(edge: Edge) -> Tensor:
    """Raises BadInput: it has none."""
    if not edge.tensors:
        raise BadInput(edge.name, "has no tensor")
    return edge.tensors[0]


def _dims(edges: Sequence[Edge]) -> dict[str, int]:
    """Raises BadInput: one may only be 0."""
    dims: dict[str, int] = {}
    for edge in edges:
        for name, most in edge.dims.items():
            dims[name] = min(most, dims.get(name, most))
            if not most:
                raise BadInput(edge.name, f"{name} is 0 at most")
    return dims


def _shape(tensor: Tensor, dims: dict[str, int]) -> tuple[int, ...]:
    """Raises BadInput: it has no size, or one that no tensor has."""
    shape = tuple(dims.get(size, -1) if isinstance(size, str) else size for size in tensor.shape)
    if min(shape, default=0) < 0:
        raise BadInput(tensor.name, f"of shape {list(tensor.shape)}, which its edge does not explain")
    return shape


def _nbytes(tensor: Tensor, dims: dict[str, int]) -> int:
    return math.prod(_shape(tensor, dims)) * ITEM_BYTES[tensor.dtype]


def _array(tensor: Tensor, dims: dict[str, int], seed: int) -> Array:
    shape, nbytes = _shape(tensor, dims), _nbytes(tensor, dims)
    count = math.prod(shape)
    if nbytes > _MOST_BYTES:
        raise BadInput("positions", f"a tensor of {nbytes} bytes, a probe sends up to {_MOST_BYTES}")
    if tensor.dtype == "bool":
        return Array(tensor.dtype, shape, b"\x01" * count)
    if tensor.dtype not in ("float32", "float16", "bfloat16"):
        return Array(tensor.dtype, shape, bytes(nbytes))
    numbers = np.random.default_rng(seed).standard_normal(count, dtype=np.float32) * 0.1
    if tensor.dtype == "float32":
        return Array(tensor.dtype, shape, numbers.tobytes())
    if tensor.dtype == "float16":
        return Array(tensor.dtype, shape, numbers.astype(np.float16).tobytes())
    return Array(tensor.dtype, shape, (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes())
