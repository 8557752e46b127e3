"""`nodewire ...`, which on a signal writes what it has of tasks and objects: `python -m bench.tools.task_counter relay
...`.

From outside a process shows its memory, files and threads, but not these. SIGUSR1: tasks by what they run, into
$NODEWIRE_COUNTS/<pid>.tasks.json. SIGUSR2, which takes a moment: objects by type, into <pid>.objects.json.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from nodewire.cli import main

FOLDER = "NODEWIRE_COUNTS"
FEW = 50


def tasks() -> dict[str, int]:
    """The running loop's tasks, by the name of their coroutine; none if no loop runs."""
    try:
        every = asyncio.all_tasks()
    except RuntimeError:
        return {}
    return dict(Counter(getattr(task.get_coro(), "__qualname__", "?") for task in every))


def objects() -> dict[str, int]:
    """What the garbage collector follows, by type; types of which there are few are left out."""
    every = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
    return {name: count for name, count in every.items() if count >= FEW}


def _write(kind: str, counted: Callable[[], dict[str, int]]) -> None:
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.{kind}.json"
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(counted()))
    aside.rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: _write("tasks", tasks))
    signal.signal(signal.SIGUSR2, lambda *_: _write("objects", objects))
    main()
