"""A dishonest provider: `nodewire provider` whose worker leaves out a layer of every stage that it serves.

    python demo/cheat.py provider --config FILE --json

nodewire knows nothing of it: the kind that it loads is told to start another worker, `lazy_worker`, which lies beside
this file and so on the path of this process and its worker.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the nodewire that this demo belongs to, as `python -m` has it
    from kinds import k8843
    from nodewire.cli import main as nodewire

    k8843.KIND.worker_entry = "lazy_worker"
    nodewire()


if __name__ == "__main__":
    main()
