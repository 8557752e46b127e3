"""What the commands that buy share: their options, the customer that they buy with, what it came to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from nodewire.cli.common.roles import check_model, load_customer, name_relays
from nodewire.cli.output import end, notes, print_json
from nodewire.config import CustomerConfig, parse_msat
from nodewire.errors import BadInput, NodewireError

if TYPE_CHECKING:
    from nodewire.cli.buy.job_view import ObservableCustomer
    from nodewire.plan.codec import EdgeCodec
    from nodewire.protocol.model.edge_codec import Codec
    from nodewire.swarm.member import SwarmCustomer

Config = Annotated[Path | None, typer.Option("--config", "-c", help="The customer's TOML file.")]
MODEL_HELP = (
    "The model's name, or its address (38840:<author>:<name>). A name is looked for among your pins"
    " (`nodewire models pin`) first. Models of your key and of keys that you follow come next, then those that"
    " providers hold."
)
Model = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)]
Report = Annotated[Path | None, typer.Option(help="Write a report of events and costs to this JSON file.")]
Budget = Annotated[
    str, typer.Option(help="The most that the job may cost, such as 50sat (default: the configuration's).")
]

Codecs = Annotated[
    list[str] | None,
    typer.Option(
        help="The lossy codec of tensors between providers: bf16, int8, auto (where it pays), or EDGE=CODEC for"
        " one edge. It may be repeated."
    ),
]
Resplit = Annotated[
    str,
    typer.Option(
        help="The most that moves to quicker rings may cost, such as 5sat; 0sat forbids them (default: the file's)."
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="Have the committee compute a sample of the work again.")]
Wait = Annotated[
    bool, typer.Option("--wait", help="Verify as --verify does, wait for the verdicts, and buy failed work anew.")
]


@dataclass(frozen=True, slots=True)
class PurchaseOptions:
    """What the options say of a purchase, whatever is bought. `most_msat` None: the configuration's budget."""

    most_msat: int | None
    edge_codec: EdgeCodec | None
    by_edge: dict[str, Codec]
    verify: bool
    wait: bool

    @classmethod
    def from_options(cls, budget: str, edge_codec: list[str] | None, *, verify: bool, wait: bool) -> Self:
        """By the options' texts. Raises BadInput."""
        most_msat = parse_msat(budget) if budget else None
        return cls(most_msat, *codecs(edge_codec), verify=verify or wait, wait=wait)

    def arguments(self, customer: ObservableCustomer) -> dict[str, Any]:
        """The arguments that a customer's methods share."""
        changed: dict[str, Any] = {"codecs": self.by_edge}
        if self.most_msat is not None:
            changed["max_total_msat"] = self.most_msat
        if self.verify:
            changed["verify"] = "sampled"
        terms = customer.terms.model_copy(update=changed)
        return {"terms": terms, "wait": self.wait, "edge_codec": self.edge_codec}


@asynccontextmanager
async def open_customer(config: CustomerConfig | SwarmCustomer, *, show: bool) -> AsyncIterator[ObservableCustomer]:
    """A customer; whoever interrupts it, or meets an error, is told what it came to until then."""
    from nodewire.cli.buy.job_view import ObservableCustomer, show_so_far

    with name_relays(config.relays):
        async with ObservableCustomer(config, show=show, asks=show) as customer:
            try:
                yield customer
            except asyncio.CancelledError:
                paid = await customer.so_far()
                end.is_told = True
                if show and not config.relays:
                    notes.print("stopped")
                elif show:
                    show_so_far("stopped", paid)
                else:
                    print_json({"stopped": True, **paid})
                raise
            except NodewireError:
                if show and (paid := await customer.so_far())["spent_msat"]:
                    show_so_far("broken off", paid)
                raise


def codecs(asked: list[str] | None) -> tuple[Any, dict[str, Any]]:
    """What --edge-codec says of the whole job (None: nothing), and of single edges. Raises BadInput."""
    from nodewire.protocol.model.edge_codec import CODECS

    whole: str | None = None
    by_edge: dict[str, str] = {}
    for text in asked or ():
        edge, named, codec = text.rpartition("=")
        if codec not in ((*CODECS, "auto") if not named else CODECS if edge else ()):
            known = ", ".join(CODECS)
            raise BadInput("--edge-codec", f"{text[:80]!r} is neither {known} nor auto, nor EDGE= and one of {known}")
        if named:
            by_edge[edge] = codec
        else:
            whole = codec
    return whole, by_edge


def can_write(file: Path | None, option: str = "--report") -> None:
    """Known before anything is paid. Raises BadInput."""
    if file is not None and not file.resolve().parent.is_dir():
        raise BadInput(option, f"the folder {file.parent} does not exist")


def only_here(what: str, **market: object) -> None:
    """Raises BadInput: a run without a market is given what only a market has. `what` says where it runs."""
    if asked := [f"--{name.replace('_', '-')}" for name, value in market.items() if value]:
        raise BadInput(asked[0], f"{what} runs the model here, without any market: leave out {' and '.join(asked)}")


def needs(config: Path | None, model: str) -> tuple[Path, CustomerConfig]:
    if config is None:
        raise BadInput("--config", "the customer's TOML file is needed (or --local FOLDER, for a model here)")
    if not model:
        raise BadInput("--model", "a model's name or address is needed; `nodewire models --config FILE` lists them")
    check_model(model)
    return config, load_customer(config)
