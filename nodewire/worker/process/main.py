"""`python -m nodewire.worker.process.main OPTIONS`: become a worker. Started by `client`, never by hand.

OPTIONS is JSON: the entry module, limits, and the inherited descriptors. Privileges go first, torch and the entry are
imported behind Landlock, then come the memory cap and seccomp, and only then anything that a peer has sent.
"""

from __future__ import annotations

import ctypes.util
import importlib
import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodewire.core import heap
from nodewire.errors import BadConfig, NodewireError
from nodewire.kind import Limits
from nodewire.worker.ipc import arena, message
from nodewire.worker.process import cores, eager_torch
from nodewire.worker.sandbox import rights

if TYPE_CHECKING:
    from nodewire.worker.process.serve import Server


def main() -> None:
    options = json.loads(sys.argv[1])
    channel = int(options["channel"])
    try:
        server, hello = _prepare(options, channel)
    except Exception as error:  # noqa: BLE001 - the daemon is told what it was
        traceback.print_exc()
        typed = (
            error if isinstance(error, NodewireError) else BadConfig("worker", f"{type(error).__name__}: {error}"[:200])
        )
        os.write(channel, message.pack({"error": typed.as_dict()}))
        sys.exit(1)
    os.write(channel, message.pack({"hello": hello}))
    server.run()


def _prepare(options: dict[str, Any], channel: int) -> tuple[Server, dict[str, Any]]:
    limits = Limits(**options["limits"])
    cores.choose(limits.threads)
    inward, outward = (arena.attach(fd, options["arena_bytes"]) for fd in options["arenas"])
    if lacking := rights.missing_layers():
        if limits.sandbox != "weak":
            raise BadConfig("worker.sandbox", rights.refusal(lacking))
        rights.keep_secrets([Path(p) for p in limits.secrets], options["parent"])
    rights.give_up_privileges(options["parent"])
    entry = options["entry"]
    packages = [*_places("nodewire"), *_places(entry)]
    layers = [rights.fence_files(packages, [Path(p) for p in options["readable"]], limits.device)]

    # ctypes asks programs, and writes a file for one, where a library is: here no program runs, and no file is written.
    # Importers have a name to fall back on (CUDA builds of torch do, by cuda.pathfinder), but do not expect an OSError.
    ctypes.util.find_library = lambda name: None

    with heap.uncollected():
        eager_torch.leave_compiler_out()
        from nodewire.worker.process import serve  # torch, seconds

        load = getattr(importlib.import_module(entry), "load", None)
        if not callable(load):
            raise BadConfig("entry", f"{entry} has no load()")
        serve.warm_up(limits)
    on_cpu = limits.device == "cpu"
    baseline = rights.cap_memory(limits.memory_bytes + rights.RESERVE_BYTES) if on_cpu else rights.private_bytes()
    layers.append(rights.fence_system_calls(limits.device))
    sandbox = "+".join(["rlimits", *filter(None, layers)]) if any(layers) else "rlimits only"
    hello = {"pid": os.getpid(), "sandbox": sandbox, "baseline_bytes": baseline, "torch": serve.torch_version()}
    return serve.Server(channel, inward, outward, load, limits), hello


def _places(entry: str) -> list[Path]:
    """Where a module's top-level package or module lies, without importing it. Raises BadConfig."""
    spec = importlib.util.find_spec(entry.partition(".")[0])
    if spec is None:
        raise BadConfig("entry", f"no module {entry}")
    folders = [Path(p) for p in spec.submodule_search_locations or ()]
    return folders or ([Path(spec.origin)] if spec.origin else [])


if __name__ == "__main__":
    main()
