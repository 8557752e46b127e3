"""`nodewire train` and `nodewire trainers`: buy the training of a model from the market, and see who sells it."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop

from nodewire.cli.common.roles import load_customer, name_relays
from nodewire.cli.model.cut import CutOptions
from nodewire.cli.model.register import TARGET_VRAM, Market, publish_folder, size_of
from nodewire.cli.model.replacement import Replace, check_free, published
from nodewire.cli.output import CUSTOMERS, Json, console, end, notes, one_line, print_json, sats
from nodewire.cli.train.recipe import read_recipe
from nodewire.config import AnyRole, CustomerConfig, load_role, parse_msat
from nodewire.errors import BadInput, NodewireError, NoProvider, NotFound

if TYPE_CHECKING:
    from nodewire.training.customer.api import TrainingResult
    from nodewire.training.customer.quote import Quote
    from nodewire.training.protocol.recipe import Recipe
    from nodewire.training.protocol.trainer_ad import Trainer

FIND_S = 30.0
"""For how long trainers are waited for before a training begins."""
_AGAIN_S = 2.0


class OuterStepMaker(StrEnum):
    SELF = "self"
    MARKET = "market"


def train(
    recipe: Annotated[Path, typer.Argument(help="The recipe, a TOML file.")],
    data: Annotated[Path, typer.Option(help="The file or folder of training data; it leaves this machine encrypted.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The customer's TOML file.")],
    budget: Annotated[
        str, typer.Option(help="The most that providers may get for it, such as 50000sat; routing fees come on top.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results (default: the recipe's name), or a .safetensors file.")
    ] = None,
    shards: Annotated[int, typer.Option(help="Parts of the data that are trained on at the same time.", min=1)] = 2,
    start: Annotated[
        Path | None,
        typer.Option(
            help="The model that the recipe starts from: a folder with weights (safetensors) and tokenizer.json, or"
            " a GGUF file."
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A folder for the trained model as Hugging Face lays it out, adapters merged.")
    ] = None,
    outer: Annotated[
        OuterStepMaker,
        typer.Option(help="The maker of a round's outer step: this machine, or a provider that is paid for it."),
    ] = OuterStepMaker.SELF,
    quote: Annotated[
        bool, typer.Option("--quote", help="Print the resources and the price of the training, and ask nobody.")
    ] = False,
    register: Annotated[
        bool, typer.Option("--register", help="Put the trained model on the market, with the customer's key.")
    ] = False,
    target_vram: Annotated[
        str, typer.Option(help="The most memory that one piece may need (with --register).")
    ] = TARGET_VRAM,
    replace: Replace = False,
    closed: Annotated[
        bool, typer.Option("--closed", help="Leave the keys out of the transcript: nobody can compute it again.")
    ] = False,
    json: Json = False,
) -> None:
    """Train a model on strangers' machines, round by round. A training that broke off goes on where it stood."""
    customer, budget_msat = load_customer(config), parse_msat(budget) if budget else None
    read = read_recipe(recipe)
    data, start = data.resolve(), start and start.resolve()
    if start is not None and not start.exists():
        raise NotFound("--start", f"nothing at {start}")
    if quote:
        _quote(
            customer, read, data, start, shards, budget_msat, buys_steps=outer is OuterStepMaker.MARKET, as_json=json
        )
        return
    if budget_msat is None:
        raise BadInput("--budget", "most that the training may cost, such as 50000sat; --quote says what it would")
    from nodewire.cli.common.training_results import model_of, note, place, trained, write

    place(out := out or Path(read.name))
    model = model or model_of(out)
    if register:
        _can_register(model, target_vram)
        if not replace:
            with name_relays(customer.relays):
                asyncio.run(_check_free(customer, read.name, trained(out)))
    elif replace:
        raise BadInput("--replace", "is for --register: nothing else is published under a name")
    ask = _Ask(
        customer,
        read,
        data,
        shards,
        budget_msat,
        start,
        model and model.resolve(),
        outer is OuterStepMaker.MARKET,
    )
    done = uvloop.run(_train(ask, show=not json))
    said = write(out, read, done, closed=closed)
    if register and model is not None:
        said["registered"] = _registered(model, read.name, target_vram, customer, replaces=replace, show=not json)
        note(out, said)
    if json:
        print_json(said)
        return
    loss = f", held-out loss {said['losses'][-1]:.4f}" if said["losses"] else ""
    console.print(
        f"[bold green]trained[/]  {said['rounds']} rounds{loss}, "
        f"{sats(said['paid_msat'])} and {sats(said['fees_msat'])} in fees; results in {one_line(str(out))}",
        soft_wrap=True,
    )
    if said["owed_msat"]:
        console.print(
            f"[yellow]owed[/] {sats(said['owed_msat'])} to providers that could not be paid: "
            "the same command tries it again",
            soft_wrap=True,
        )
    if "registered" in said:
        console.print(f"[bold green]registered[/] {said['registered']['address']}", soft_wrap=True)


def trainers(
    config: Annotated[Path, typer.Option("--config", "-c", help="A role's TOML file: relays.")],
    json: Json = False,
) -> None:
    """List the trainers with their families, prices and memory."""
    role = load_role(config)
    with name_relays(role.relays):
        market = asyncio.run(_market(role))
    if json:
        print_json({"trainers": [{"public": public, **ad.document()} for public, ad in sorted(market.items())]})
        return
    from rich.table import Table

    if not market:
        console.print("nobody on these relays trains")
        return
    table = Table("trainer", "families", "a Pflop", "a round at least", "deposit", "memory", "speed", box=None)
    for public, ad in sorted(market.items(), key=lambda one: (one[1].msat_per_pflop, one[1].name)):
        table.add_row(
            f"{one_line(ad.name)} [dim]{public[:8]}[/]",
            ", ".join(ad.families),
            sats(ad.msat_per_pflop),
            sats(ad.least_msat),
            f"{ad.deposit_ppm / 10_000:g} %",
            f"{ad.memory_bytes / 1e6:,.0f} MB",
            f"{ad.gflops:,} Gflop/s, {ad.concurrency} at a time",
        )
    console.print(table)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(train)
    app.command(rich_help_panel=CUSTOMERS)(trainers)


def _can_register(model: Path | None, target_vram: str) -> None:
    """Known before anything is paid."""
    if model is None:
        raise BadInput(
            "--register", "--out is a file for the weights alone: name a folder, or a --model folder beside it"
        )
    size_of(target_vram)


async def _check_free(customer: CustomerConfig, name: str, summary: dict[str, Any]) -> None:
    """Known before anything is paid. Raises NotAllowed: another model than this training's stands under the name."""
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool

    keys, before = Keys.from_file(customer.key), summary.get("registered")
    async with Pool(customer.relays, keys=keys) as pool:
        if (there := await published(pool, keys.public, name)) is not None:
            check_free(there, str(before.get("digest")) if isinstance(before, dict) else "")


def _registered(
    model: Path, name: str, target_vram: str, customer: CustomerConfig, *, replaces: bool, show: bool
) -> dict[str, Any]:
    """Put a trained model on the customer's own relays and blob servers."""
    market = Market(customer.key, list(customer.relays), list(customer.blossom), replaces)
    _, done = publish_folder(model, CutOptions(size_of(target_vram), name), market, show=show)
    return done


def _quote(
    customer: CustomerConfig,
    recipe: Recipe,
    data: Path,
    start: Path | None,
    shards: int,
    budget_msat: int | None,
    *,
    buys_steps: bool,
    as_json: bool,
) -> None:
    from nodewire.cli.train.quote import show_quote
    from nodewire.training.customer.dataset_check import try_files

    asyncio.run(try_files(customer, recipe, data, shards=shards, start=start))
    with name_relays(customer.relays):
        made = asyncio.run(_quoted(customer, recipe, data, shards, buys_steps=buys_steps))
    if not as_json:
        show_quote(made, console, budget_msat=budget_msat, buys_steps=buys_steps)
    try:
        made.check(made.total_msat if budget_msat is None else budget_msat)
    except NodewireError as error:
        if not as_json:
            raise
        print_json({**made.document(), "error": error.as_dict()})
        raise typer.Exit(1) from error
    if as_json:
        print_json(made.document())


async def _quoted(
    customer: CustomerConfig, recipe: Recipe, data: Path, shards: int, *, buys_steps: bool, wait_s: float = 0.0
) -> Quote:
    """What the training would take, by today's ads; they are waited for as long as too few are there."""
    from nodewire.training.customer.api import begun, kind_of
    from nodewire.training.customer.dataset import look
    from nodewire.training.customer.quote import quote

    kind, found, until_s = kind_of(recipe), look(recipe, data), time.monotonic() + wait_s
    state = begun(customer, recipe, shards, data)
    while True:
        made = quote(
            recipe,
            kind.request,
            found,
            shards,
            await _market(customer),
            servers=len(customer.blossom),
            state=state,
            buys_steps=buys_steps,
        )
        try:
            made.check(made.total_msat)
        except NoProvider:
            if time.monotonic() < until_s:
                await asyncio.sleep(_AGAIN_S)
                continue
        return made


async def _market(role: AnyRole) -> dict[str, Trainer]:
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.training.customer.policy import provider_selection

    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(Pool(role.relays, keys=Keys.from_file(role.key)))
        return await provider_selection.trainers(pool)


@dataclass(frozen=True, slots=True)
class _Ask:
    """A training to be made by the market; `start` and `model` as `nodewire.training.customer.api.train` has them."""

    customer: CustomerConfig
    recipe: Recipe
    data: Path
    shards: int
    budget_msat: int
    start: Path | None
    model: Path | None
    buys_steps: bool


async def _train(ask: _Ask, *, show: bool) -> TrainingResult:
    """Quote, then buy; whoever interrupts it is told where it stands."""
    from nodewire.cli.train.quote import show_quote
    from nodewire.cli.train.view import TrainingView
    from nodewire.training.customer.api import train as buy
    from nodewire.training.customer.market.context import TrainingOrder

    with name_relays(ask.customer.relays):
        quote = await _quoted(ask.customer, ask.recipe, ask.data, ask.shards, buys_steps=ask.buys_steps, wait_s=FIND_S)
        if show:
            show_quote(quote, notes, budget_msat=ask.budget_msat, buys_steps=ask.buys_steps)
        quote.check(ask.budget_msat)
        names = {offer.public: offer.name for offer in quote.offers}
        view = TrainingView(ask.recipe, ask.budget_msat, notes, names=names, seconds=quote.seconds)
        try:
            with view.shown(show):
                return await buy(
                    ask.customer,
                    ask.recipe,
                    ask.data,
                    TrainingOrder(ask.shards, ask.budget_msat, ask.buys_steps),
                    start=ask.start,
                    model=ask.model,
                    on_begin=view.begin,
                    on_change=view.update,
                )
        except (asyncio.CancelledError, NodewireError) as error:
            stopped = isinstance(error, asyncio.CancelledError)
            end.is_told = stopped
            if show:
                notes.print(view.stopped("stopped" if stopped else "broken off"), soft_wrap=True)
            elif stopped:
                print_json({"stopped": True, **view.so_far()})
            raise
