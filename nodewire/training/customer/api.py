"""`train`: from recipe, data and budget to a trained model."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodewire.errors import NodewireError, NotAllowed, NotFound
from nodewire.kind import TrainingKind, installed_training
from nodewire.store.folder import digest
from nodewire.training.customer import files
from nodewire.training.customer.driver import Rounds
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.machine.state import State
from nodewire.training.customer.machine.transitions import apply
from nodewire.training.customer.market.context import Course, OnChange, TrainingOrder
from nodewire.training.customer.market.coordinator_client import Coordinator
from nodewire.training.customer.market.round_request import Requests
from nodewire.training.customer.market.session import open_session
from nodewire.training.customer.process_lock import alone
from nodewire.training.customer.round_history import History
from nodewire.training.customer.transcript import transcribe
from nodewire.training.protocol.round import check_supported
from nodewire.worker.client import LONG_CALL_S, WorkerProcess
from nodewire.worker.persistent_worker import LastingWorker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nodewire.config import CustomerConfig
    from nodewire.training.protocol.recipe import Recipe
    from nodewire.training.protocol.transcript import Transcript


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """`weights` are a safetensors file; money is what left the wallet for this training, over all runs."""

    job: str
    weights: bytes
    state: State
    paid_msat: int
    fees_msat: int
    history: History
    transcript: Transcript | None = None

    @property
    def owed_msat(self) -> int:
        """What is owed to providers that could not be paid so far."""
        return sum(self.state.owed.values())


async def train(
    config: CustomerConfig,
    recipe: Recipe,
    data: Path,
    order: TrainingOrder,
    *,
    on_begin: Callable[[Course], None] | None = None,
    on_change: OnChange | None = None,
    start: Path | None = None,
    model: Path | None = None,
) -> TrainingResult:
    """Buy all of a recipe's rounds on the shards of the data in a file or folder.

    Args:
        config: the customer's; its state holds the journal.
        recipe: what is trained, and by which rules.
        data: a file or folder; its samples are split into shards.
        order: how many shards, for how much.
        on_begin: told before anything happens, when earlier runs stand in the course's journal.
        on_change: told of every event, as `OnChange` has it.
        start: the folder (or safetensors file) with what the recipe cites: weights, and tokenizer.json.
        model: a folder where what was trained is written as Hugging Face lays it out, adapters merged; may be missing.

    A training that was broken off (the same recipe and number of shards) goes on where it stood, with the same data.

    Raises:
        Busy: another process is at this very training.
        NotAllowed: it was begun with other data.
        Unsupported, BadData, BadRecipe, BadTask: what was given cannot be trained.
        NotFound, BadHash: what the recipe cites is not there, or is something else.
        NoProvider, OverBudget: it cannot be bought, or not to its end.

    """
    check_supported(recipe)
    kind = kind_of(recipe)
    async with AsyncExitStack() as stack:
        folder = _made(folder_of(config, recipe, order.shards), data)
        stack.enter_context(alone(folder))
        journal = Journal(folder / "journal.db")
        stack.callback(journal.close)
        _check_data(journal, folder, data, await asyncio.to_thread(digest, data, "--data"))
        session = await open_session(stack, config)
        requests = Requests(
            session.keys, recipe, kind.request, journal.fact("salt", secrets.token_hex(32)), config.relays
        )

        async def started() -> WorkerProcess:
            readable = [folder, data, *(files.readable(start) if start else ())]
            return await WorkerProcess.start(
                kind.worker_entry, config.limits, readable=readable, call_timeout_s=LONG_CALL_S
            )

        worker = LastingWorker(started)
        stack.push_async_callback(worker.stop)
        coordinator = Coordinator(worker, session.blobs, folder)
        await coordinator.open(recipe.pack(), data, order.shards, start)
        course = Course(session, recipe, kind.request, journal, coordinator, requests, order, on_change=on_change)
        if on_begin is not None:
            on_begin(course)
        await Rounds(course).run()
        if model is not None:
            files.write(model, await coordinator.model())
        return await _result(course)


async def _result(course: Course) -> TrainingResult:
    """What came of a course that is over."""
    session, journal, state = course.session, course.journal, course.state
    spent = [session.ledger.spent(job=request) for request in state.requests]
    return TrainingResult(
        course.requests.job,
        await course.coordinator.weights(),
        state,
        sum(one.paid_msat for one in spent),
        sum(one.fees_msat for one in spent),
        History.replay(journal.events(), session.keys),
        await transcribe(course, journal.fact("salt", "")),
    )


def kind_of(recipe: Recipe) -> TrainingKind:
    """Who serves the recipe's rounds. Raises NotAllowed: nothing that is installed."""
    for kind in installed_training().values():
        try:
            kind.check(recipe)
        except NodewireError:
            continue
        return kind
    raise NotAllowed("recipe", "no installed package serves its kind of round")


def folder_of(config: CustomerConfig, recipe: Recipe, shards: int) -> Path:
    """Where a training keeps its journal: one per recipe and number of shards."""
    return config.state / "training" / f"{recipe.name}-{recipe.digest()[:16]}-{shards}"


def _made(folder: Path, data: Path) -> Path:
    if not data.exists():
        raise NotFound("--data", f"nothing at {data}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _check_data(journal: Journal, folder: Path, data: Path, sha256: str) -> None:
    """Write down what a training begins with. Raises NotAllowed: it has begun with something else.

    Journals of before this was written down take any data.
    """
    if not journal.is_begun:
        journal.note("data", sha256)
    elif journal.fact("data", "") not in ("", sha256):
        raise NotAllowed(
            "--data",
            f"{data} holds other data than the training in {folder} was begun with. Give it those to go on. To train on"
            " the new ones, give the recipe another name, or delete that folder with all that it owes",
        )


def begun(config: CustomerConfig, recipe: Recipe, shards: int, data: Path) -> State | None:
    """Where an earlier run of the same training stands; None if there was none.

    Raises:
        NotAllowed: it was begun with other data.

    """
    folder = folder_of(config, recipe, shards)
    path = folder / "journal.db"
    if not path.exists():
        return None
    journal = Journal(path)
    try:
        if journal.is_begun:
            _check_data(journal, folder, data, digest(data, "--data"))
        state = State()
        for event in journal.events():
            state = apply(event, state)
        return state if state.rounds else None
    finally:
        journal.close()
