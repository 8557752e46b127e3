"""A customer that dies right before something is written down: `python -m bench.training.crash_customer EVENT train
...`, as `nodewire`.

From outside it can be killed only when an event stands in its journal; between what it does and the word about it is
nothing to be seen. So it does this itself, by SIGKILL: no handler runs, nothing is flushed.
"""

from __future__ import annotations

import os
import signal
import sys

from nodewire.training.customer.machine import journal
from nodewire.training.customer.machine.events import Event


def dies_before(name: str) -> None:
    """From now on this process ends where an event would be written to a journal under that name."""
    append = journal.Journal.append

    def dying(self: journal.Journal, event: Event) -> None:
        if journal.tag(event) == name:
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, event)

    journal.Journal.append = dying


def main() -> None:
    from nodewire.cli import main as nodewire

    dies_before(sys.argv.pop(1))
    nodewire()


if __name__ == "__main__":
    main()
