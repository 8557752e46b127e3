"""Checks a task before a byte is allocated for it: its weights' headers, its types, its memory at the largest sizes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask, TooLarge
from nodewire.graph.program.format import DTYPES, MAX_SIZE, NAMES, Program, Weight
from nodewire.graph.program.liveness import corners, walk, weight_bytes
from nodewire.protocol.tensors.frame import MAX_RANK
from nodewire.protocol.tensors.safetensors_dtypes import DTYPE_OF

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAX_HEADER_BYTES = 8 * 2**20
MAX_VERIFY_S = 12.0
"""Of processor time; tasks of the largest models take a tenth of that."""
_HEADER_BYTES, _ENTRY_BYTES = 65_536, 512
"""Of a header: for what stands beside the tensors, and for each of them (a name has 160 characters at most)."""


@dataclass(frozen=True, slots=True)
class VerifiedProgram:
    """What a task takes at most: `weight_bytes` and `live_bytes` (inputs among them) at once, `flops` for a call."""

    program: Program
    weight_bytes: int
    live_bytes: int
    input_bytes: int
    flops: int

    @property
    def peak_bytes(self) -> int:
        return self.weight_bytes + self.live_bytes


def verify(program: Program, budget_bytes: int, threads: int = 1) -> VerifiedProgram:
    """Run the program on the meta device at the largest sizes it declares, for a machine that gives it `threads`.

    Raises:
        BadTask, OverMemory, TooLarge: naming the node, input or output.

    """
    peak = flops = arriving = 0
    every = corners(program)
    for sizes in every:
        course = walk(program, sizes, budget_bytes, threads, longest_s=MAX_VERIFY_S / len(every))
        peak, flops = max(peak, course.peak_bytes), max(flops, course.flops)
        arriving = max(arriving, sum(course.types[i.name].nbytes for i in program.inputs))
    return VerifiedProgram(program, weight_bytes(program), peak, arriving, flops)


def verify_weights(program: Program, files: Sequence[Path]) -> None:
    """Check that the files hold exactly the program's weights, reading only their headers.

    Raises:
        BadTask: a header is malformed, a weight is missing, superfluous, or of another dtype or shape; names it.
        TooLarge: a header over 8 MiB.

    """
    if max((w.file for w in program.weights), default=-1) >= len(files):
        raise BadTask("weights", f"names a file that is not among the {len(files)} given")
    for index, path in enumerate(files):
        expected = {w.name: w for w in program.weights if w.file == index}
        found = header(path, _HEADER_BYTES + _ENTRY_BYTES * len(expected))
        for name in sorted(set(found) ^ set(expected)):
            where = "is in the file and not in the program" if name in found else "is not in its file"
            raise BadTask(_shown(name), where)
        for name, weight in expected.items():
            if found[name] != (NAMES[weight.dtype], weight.shape):
                raise BadTask(name, f"is {found[name]} in its file, declared {_declared(weight)}")


def header(path: Path, most_bytes: int = MAX_HEADER_BYTES) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The dtype and the shape of every tensor in a safetensors file, its offsets checked against its size.

    https://github.com/huggingface/safetensors#format

    Raises:
        BadTask: not that format.
        TooLarge: the header is over `most_bytes`, or 8 MiB.

    """
    most_bytes = min(most_bytes, MAX_HEADER_BYTES)
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > most_bytes:
            raise TooLarge("weights", f"a header of {length} bytes, at most {most_bytes}")
        if size < 8 or length > size - 8:
            raise BadTask("weights", "shorter than its header")
        try:
            raw = json.loads(file.read(length))
        except (ValueError, RecursionError) as error:
            raise BadTask("weights", "its header is not JSON") from error
    if not isinstance(raw, dict) or not isinstance(raw.pop("__metadata__", {}), dict):
        raise BadTask("weights", "its header is not a map, or what it says beside tensors is none")
    found = {name: _entry(name, entry) for name, entry in raw.items()}
    end = 0
    for name, (_, _, first, last) in sorted(found.items(), key=lambda item: item[1][2:]):
        if first != end:
            raise BadTask(_shown(name), "its bytes overlap others or leave a gap")
        end = last
    if end != size - 8 - length:
        raise BadTask("weights", f"{size - 8 - length} bytes of data, its header says {end}")
    return {name: (dtype, shape) for name, (dtype, shape, _, _) in found.items()}


def _entry(name: str, raw: Any) -> tuple[str, tuple[int, ...], int, int]:
    match raw:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(first), int(last)]} if (
            (dtype := DTYPE_OF.get(code)) in DTYPES
            and len(shape) <= MAX_RANK
            and all(type(n) is int and 0 <= n <= MAX_SIZE for n in shape)
            and 0 <= first <= last
        ):
            if last - first == math.prod(shape) * DTYPES[dtype].itemsize:
                return dtype, tuple(shape), first, last
    raise BadTask(_shown(name), "its entry in the file's header is malformed")


def _shown(name: str) -> str:
    """A name out of a stranger's JSON, which may hold halves of characters that no message can carry."""
    return name[:160].encode("unicode_escape").decode()[:160] or "weights"


def _declared(weight: Weight) -> tuple[str, tuple[int, ...]]:
    return NAMES[weight.dtype], weight.shape
