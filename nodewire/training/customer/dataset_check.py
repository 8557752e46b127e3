"""Whether a customer's files can be trained on, before anyone is asked: its worker reads them as for a training."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from nodewire.training.customer import files
from nodewire.training.customer.api import kind_of
from nodewire.training.customer.dataset import look
from nodewire.training.customer.market import coordinator_client
from nodewire.training.protocol.round import check_supported
from nodewire.worker.client import LONG_CALL_S, WorkerProcess

if TYPE_CHECKING:
    from nodewire.config import CustomerConfig
    from nodewire.training.protocol.recipe import Recipe


async def try_files(
    config: CustomerConfig, recipe: Recipe, data: Path, *, shards: int, start: Path | None = None
) -> None:
    """Read data and `start`, split them, and measure the weights that the first round begins with; leaves nothing.

    Raises:
        Unsupported, BadData, BadRecipe, BadTask: what was given cannot be trained; names the row, where it is one.
        NotFound, BadHash: what the recipe cites is not there, or is something else.
        WorkerFailed: it takes more memory than the worker has.

    """
    check_supported(recipe)
    kind = kind_of(recipe)
    look(recipe, data)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (program := folder / "recipe").write_bytes(recipe.pack())
        readable = [folder, data, *(files.readable(start) if start else ())]
        worker = await WorkerProcess.start(
            kind.worker_entry, config.limits, readable=readable, call_timeout_s=LONG_CALL_S
        )
        stack.push_async_callback(worker.stop)
        await coordinator_client.read(worker, program, data, shards, start)
