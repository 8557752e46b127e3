"""A task's program compiled ahead, where an operator allows it.

`python -m nodewire.graph.compile FOLDER PROGRAM...` does it. Compiling starts processes and writes files, and a worker
may do neither. So a builder, which this module is when it is run, verifies a program as a worker would, makes it an fx
graph again (nothing of the program but operators, sizes and constants gets into it; every name is ours), and has
TorchInductor, which is what `torch.compile` runs, write a library into a folder. It has seen the program and no
weights, inputs or keys: weights are arguments of the library. A worker whose configuration names the folder ([worker]
compiled) loads what it finds there by key, and believes it only where it has said the same as the interpreter, at sizes
of 1 and above; everything else, and all when there is no library, no C++ compiler, another version of torch, another
processor or number of threads, is interpreted.

A library is code: the folder must be the operator's and writable by nobody else. It is for the CPU.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from nodewire.errors import BadInput, BadTask, NodewireError, NotAllowed, NotFound, Unsupported
from nodewire.graph.program.format import Input, Program
from nodewire.graph.program.interpreter import Interpreter, check_dims
from nodewire.graph.program.verification import verify
from nodewire.graph.program.warning_filter import unwarned
from nodewire.graph.program.whitelist import OPS, Ref

VERSION = 2
"""Of how programs become libraries; part of the key."""
MAX_COMPILED_BYTES = 2**44
_CLOSE = {torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 4e-2}
"""How far a compiled result may be from the interpreter's, of the largest value: sums in another order."""
_SIZE = 3
_BEYOND = 2**31 - 1
"""An index that no table has, and int32 holds."""

Tensors = Mapping[str, torch.Tensor]


def rematerialized(program: Program) -> torch.fx.GraphModule:
    """The program as a module of its inputs, then its weights, in the program's order; it returns a tuple."""
    graph = torch.fx.Graph()
    values: dict[str, torch.fx.Node] = {}
    for k, name in enumerate((*(i.name for i in program.inputs), *(w.name for w in program.weights))):
        values[name] = graph.placeholder(f"a{k}")
    for dim in program.dims:
        source = next(i for i in program.inputs if dim in i.shape)
        size = (values[source.name], source.shape.index(dim))
        values[dim] = graph.call_function(torch.ops.aten.sym_size.int, size)
    for node in program.nodes:
        args = tuple(_placed(arg, values) for arg in node.args)
        kwargs = {key: _placed(arg, values) for key, arg in node.kwargs.items()}
        op = OPS[node.op]
        if op.places:
            kwargs["device"] = torch.device("cpu")
        if op.name == "aten.index_select.default":
            args, kwargs = (), _from_zero(graph, op.bound(args, kwargs))
        values[node.name] = graph.call_function(op.call, args, kwargs)
    graph.output(tuple(values[out.value] for out in program.outputs))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _from_zero(graph: torch.fx.Graph, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a selection that refuses what the interpreter refuses.

    The library counts a negative index from the end: whoever answered so would be judged by others who do not.
    """
    below = graph.call_function(torch.ops.aten.lt.Scalar, (given["index"], 0))
    refused = graph.call_function(torch.ops.aten.where.ScalarSelf, (below, _BEYOND, given["index"]))
    return {**given, "index": refused}


def _placed(arg: Any, values: Mapping[str, torch.fx.Node]) -> Any:
    if isinstance(arg, Ref):
        return values[arg.name]
    if isinstance(arg, list | tuple):
        return [_placed(item, values) for item in arg]
    return arg


def key(program: bytes, threads: int) -> str:
    """What a library is called: a hash of all that decides whether it is the right one here."""
    of = (str(VERSION), hashlib.sha256(program).hexdigest(), torch.__version__, _processor(), str(threads), "cpu")
    return hashlib.sha256("\n".join(of).encode()).hexdigest()


def _processor() -> str:
    """The instructions that the compiler may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return f"{platform.machine()} {next((line for line in lines if line.startswith(('flags', 'Features'))), '')}"


# The builder.


def build(data: bytes, folder: Path, threads: int = 1) -> Path:
    """The library of a program, which is made if it is not in `folder` yet.

    Raises:
        BadTask, BadVersion, TooLarge: the program is not one that a worker would load.
        Unsupported: TorchInductor cannot compile it, or there is no C++ compiler.

    """
    path = folder / f"{key(data, threads)}.so"
    if path.exists():
        return path
    program = Program.decode(data)
    if program.takes_some or any(node.op.startswith("nodewire.") for node in program.nodes):
        raise Unsupported("program", "data decide how many rows there are; it is interpreted")
    verify(program, MAX_COMPILED_BYTES, threads)
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory(dir=folder, prefix="building-") as scratch:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = scratch
        # Whole, or not there: a worker may look at any time, and another builder be at the same program.
        return _library(program, Path(scratch)).rename(path)


def _library(program: Program, scratch: Path) -> Path:
    sizes = {name: min(_SIZE + 2 * k, most) for k, (name, most) in enumerate(program.dims.items())}
    symbols = {name: torch.export.Dim(f"d{k}", max=max(most, 2)) for k, (name, most) in enumerate(program.dims.items())}
    arguments = [*((i.shape, i.dtype) for i in program.inputs), *((w.shape, w.dtype) for w in program.weights)]
    # Memory that is never touched: the largest weights cost nothing here.
    examples = tuple(
        torch.empty([sizes[d] if isinstance(d, str) else d for d in shape], dtype=dtype) for shape, dtype in arguments
    )
    dynamic = tuple(
        {at: symbols[d] for at, d in enumerate(shape) if isinstance(d, str) and program.dims[d] > 1}
        for shape, _ in arguments
    )
    # The scratch folder goes, and precompiled headers with it.
    options = {"aot_inductor.output_path": str(scratch / "task.so"), "aot_inductor.precompile_headers": False}
    try:
        with torch.no_grad(), unwarned():
            exported = torch.export.export(rematerialized(program), examples, dynamic_shapes=dynamic, strict=False)
            made = torch._inductor.aot_compile(exported.module(), examples, options=options)
    except Exception as error:  # the compiler's own errors have no common class
        raise Unsupported("program", f"cannot be compiled: {str(error).strip().splitlines()[0][:200]}") from error
    return Path(str(made))


# The worker.


class CompiledProgram:
    """A library that said what the interpreter says, at the kinds of sizes in which it did."""

    def __init__(self, program: Program, weights: Tensors, library: Path) -> None:
        self._program = program
        self._weights = [weights[one.name].contiguous() for one in program.weights]
        self._runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
        self._kinds: set[tuple[bool, ...]] = set()

    def admits(self, dims: Mapping[str, int]) -> bool:
        """Whether it has been checked for sizes of this kind: each dim 1, or above."""
        return all(dims.values()) and _kind(dims) in self._kinds

    def __call__(self, inputs: Tensors, dims: Mapping[str, int]) -> dict[str, torch.Tensor]:
        """The outputs by value name.

        Raises:
            BadTask: the library refuses, which an index out of range makes it do.

        """
        arguments = [*(inputs[one.name].contiguous() for one in self._program.inputs), *self._weights]
        try:
            results = self._runner.run(arguments)
        except RuntimeError as error:
            raise BadTask("program", f"compiled: {(str(error).splitlines() or [''])[0][:160]}") from error
        found: dict[str, torch.Tensor] = {}
        for out, result in zip(self._program.outputs, results, strict=True):
            shape = tuple(dims[size] if isinstance(size, str) else size for size in out.shape)
            if result.dtype != out.dtype or tuple(result.shape) != shape:
                raise BadTask(out.value, f"leaves the compiled task as {result.dtype} {list(result.shape)}")
            found[out.value] = result
        return found

    def check(self, interpreter: Interpreter) -> int:
        """Compare with the interpreter at every kind of sizes; how many kinds are right."""
        with torch.no_grad():
            for ones in product((False, True), repeat=len(self._program.dims)):
                sizes = {
                    name: 1 if one else min(most, _SIZE + 2 * k)
                    for k, ((name, most), one) in enumerate(zip(self._program.dims.items(), ones, strict=True))
                }
                try:
                    check_dims(self._program, sizes)
                    inputs = {one.name: _example(one, sizes) for one in self._program.inputs}
                    if _alike(self(inputs, sizes), interpreter(inputs, sizes)):
                        self._kinds.add(_kind(sizes))
                except (BadInput, BadTask):
                    continue
        return len(self._kinds)


def find(data: bytes, program: Program, weights: Tensors, folder: Path, threads: int) -> CompiledProgram:
    """The compiled form of a task, checked against the interpreter.

    Raises:
        NotFound: nobody has compiled it for this machine.
        NotAllowed: others may write into the folder.
        BadTask: it says something else than the interpreter.

    """
    path = folder / f"{key(data, threads)}.so"
    if not path.is_file():
        raise NotFound(str(folder), "holds no library of this task for this machine")
    for place in (folder, path):
        found = place.stat()
        if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NotAllowed(str(place), "may be written by others")
    try:
        made = CompiledProgram(program, weights, path)
    except RuntimeError as error:
        raise BadTask("program", f"its library does not load: {str(error).splitlines()[0][:160]}") from error
    if not made.check(Interpreter(program, weights)):
        raise BadTask("program", "compiled, it says something else than the interpreter")
    return made


def _kind(dims: Mapping[str, int]) -> tuple[bool, ...]:
    return tuple(size == 1 for size in dims.values())


def _example(one: Input, sizes: Mapping[str, int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(one.name))
    shape = [sizes[size] if isinstance(size, str) else size for size in one.shape]
    if one.dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(one.dtype)
    return torch.randint(0, max(1, min(one.below or 2, 100)), shape, generator=generator).to(one.dtype)


def _alike(compiled: Tensors, interpreted: Tensors) -> bool:
    for name, ours in interpreted.items():
        theirs = compiled[name]
        if not ours.dtype.is_floating_point:
            if not torch.equal(ours, theirs):
                return False
            continue
        bound = _CLOSE[ours.dtype] * max(1.0, float(ours.float().nan_to_num().abs().max()) if ours.numel() else 1.0)
        if not torch.allclose(ours.float(), theirs.float(), rtol=0.0, atol=bound, equal_nan=True):
            return False
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m nodewire.graph.compile", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("folder", type=Path, help="where workers look: [worker] compiled")
    parser.add_argument("programs", nargs="+", type=Path, help="programs of graph tasks, as a registration wrote them")
    parser.add_argument("--threads", type=int, default=1, help="as [worker] threads says")
    given = parser.parse_args(arguments)
    given.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    failed = False
    for path in given.programs:
        try:
            print(f"{path.name}: {build(path.read_bytes(), given.folder, given.threads).name}", flush=True)
        except NodewireError as error:
            failed = True
            print(f"{path.name}: {error}; it is interpreted", file=sys.stderr, flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
