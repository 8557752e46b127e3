"""An address to listen on. One that cannot be had is told with the setting that names it."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNUSABLE = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})


@contextmanager
def named_by(setting: str, address: str) -> Iterator[None]:
    """Raises BadConfig: what runs in here cannot listen on `address`, which `setting` names."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNUSABLE or error.filename is not None:
            raise
        why = os.strerror(error.errno).lower()
        raise BadConfig(setting, f"cannot listen on {address} ({why}): choose another address or port") from error
