"""Work of torch's exporter and compiler without warnings of what it itself does, and nobody who calls it can change."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def unwarned() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*LeafSpec", category=FutureWarning)
        warnings.filterwarnings("ignore", message=r".*torch\.jit\.script", category=DeprecationWarning)
        # Of a recurrence's own list of weights; what a model's code leaves on `self` is looked for apart.
        warnings.filterwarnings("ignore", message=r"The tensor attributes? .*assigned during export")
        yield
