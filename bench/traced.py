"""`nodewire ...` whose workers say when they computed what: `python -m bench.traced provider --config FILE`."""

from __future__ import annotations

from kinds.k8843 import SplitInference
from nodewire.cli import main

SplitInference.worker_entry = "bench.traced_worker"

if __name__ == "__main__":
    main()
