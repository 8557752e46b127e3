"""`nodewire ...` whose workers say when they computed what: `python -m bench.market.trace_provider provider --config
FILE`."""

from __future__ import annotations

from kinds.k8843 import SplitInference
from nodewire.cli import main

SplitInference.worker_entry = "bench.market.trace_worker"

if __name__ == "__main__":
    main()
