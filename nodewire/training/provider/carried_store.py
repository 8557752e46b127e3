"""What a provider carries from round to round, on its disk: sealed files, found by what a ticket says.

A file's name is `TIME-JOB-SHARD-DIGEST`, TIME being when it is over: no round that needs it can come later. Its key
follows from the job's salt, which comes in tickets, so between two rounds nobody can read it here. What a round began
with stays until the round is paid: it may have to be shown, or trained again after a crash. And for a few rounds more:
the customer may go back to before it (nips/33-training-audits.md).
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from nodewire.errors import NotCarried
from nodewire.protocol.encoding import canonical
from nodewire.store import sealed_blobs
from nodewire.training.protocol.recipe import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from nodewire.training.provider.admission import AdmittedShard

KEPT = 4
"""Of one shard, the newest that stay when a round is paid: audits that have steps undone fail within fewer rounds."""
_NAME = re.compile(r"(\d{1,12})-([0-9a-f]{64})-(\d{1,4})-([0-9a-f]{64})")


class CarriedFiles:
    """At most `most_bytes` of them in a folder.

    Above that the first to be over go, which costs their shards a fresh beginning and no more.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._most_bytes = most_bytes
        self._sweep()

    def begun(self, job: AdmittedShard) -> tuple[Path, str] | None:
        """The file of what a round begins with, and its key; None if it begins with nothing. Raises NotCarried."""
        digest = job.ticket.carried
        if digest is None:
            return None
        found = self._find(job, digest)
        if not found:
            raise NotCarried("carried", "it is not here (any more)")
        return found[0], _key(job, digest)

    def keep(self, job: AdmittedShard, digest: str, pieces: Sequence[bytes]) -> None:
        """Write down what is carried from a round, before anybody hears of it. On disk when this returns."""
        if digest == NOTHING or job.request.round.round + 1 >= job.recipe.rounds:
            return
        until_s = int(time.time()) + 2 * job.request.round.deadline_s
        for known in self._find(job, digest):
            known.unlink()
        path = self._folder / f"{until_s}-{job.request.round.job}-{job.assigned.index}-{digest}"
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            for segment in sealed_blobs.seal(pieces, _key(job, digest)):
                file.write(segment)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        self._sweep()

    def prune(self, job: AdmittedShard) -> None:
        """A round is paid, or will never be: nobody asks for what is older than what it began with, by some rounds."""
        wanted = job.request.round.job, str(job.assigned.index)
        mine = [path for _, path, name in self._files() if name[:2] == wanted]
        for path in sorted(mine, key=lambda path: path.stat().st_mtime_ns)[:-KEPT]:
            path.unlink()

    def _find(self, job: AdmittedShard, digest: str) -> list[Path]:
        wanted = job.request.round.job, str(job.assigned.index), digest
        return [path for _, path, name in self._files() if name == wanted]

    def _files(self) -> Iterator[tuple[int, Path, tuple[str, str, str]]]:
        for path in self._folder.iterdir():
            if (match := _NAME.fullmatch(path.name)) is not None:
                yield int(match[1]), path, (match[2], match[3], match[4])

    def _sweep(self) -> None:
        """Remove what is over, what was left of a crash, and the first ones of too many."""
        for path in self._folder.glob("*.partial"):
            path.unlink()
        now_s, left = time.time(), 0
        for until_s, path, _ in sorted(self._files(), reverse=True):
            size = path.stat().st_size
            if until_s <= now_s or left + size > self._most_bytes:
                path.unlink()
            else:
                left += size


def _key(job: AdmittedShard, digest: str) -> str:
    """Of one file: what is sealed twice with it is the same."""
    return canonical.digest("nodewire/carried-key/1", [job.ticket.salt, job.assigned.index, digest])
