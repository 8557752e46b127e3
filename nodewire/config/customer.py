"""The file of a customer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from nodewire.config.fields import Person
from nodewire.config.file import Section
from nodewire.config.role import HolderConfig, Role, WalletConfig, WireConfig, WorkerConfig, check_draft, limits_of
from nodewire.protocol.encoding.schema import Label, Msat
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD

if TYPE_CHECKING:
    from nodewire.kind import Limits


class ProviderChoice(Section):
    """The providers that a customer buys from, and its own share of the work; people as nodewire.customer.contacts."""

    driver: Literal["provider", "local", "ends"] = "provider"
    """The part of the model on this machine. `provider`: nothing. `local`: the driver, so that text and sampling stay
    here. `ends`: the model's first and last layers, too. It costs nothing, and every token travels through here."""
    trusted: tuple[Person, ...] = Field(default=(), max_length=64)
    """The only providers to buy from, if not empty. A person is an npub, or a NIP-51 follow set: an naddr, or
    `30000:AUTHOR:NAME`. A set is read when a command begins, at most 64 people of it."""
    ends: tuple[Person, ...] = Field(default=(), max_length=64)
    """The only providers for the driver, and for the first and last layers, if not empty."""
    excluded: tuple[Person, ...] = Field(default=(), max_length=64)
    """Providers that are never bought from."""
    regions: tuple[Label, ...] = Field(default=(), max_length=16)
    """The only regions to buy from, if not empty, by the providers' own word."""


class CustomerConfig(Role):
    wallet: WalletConfig
    """The wallet that pays."""
    holder: HolderConfig | None = None
    """The bonds' holder. Empty: the wallet's own service."""
    whom: ProviderChoice = ProviderChoice()
    """The choice of providers, and the part of the model on this machine."""
    wire: WireConfig = WireConfig()
    """The customer's addresses and links."""
    worker: WorkerConfig = WorkerConfig()
    """The processes for tasks that run on this machine."""
    max_chunk_msat: Msat = 100_000
    """The highest price of a unit over all tasks: of 64 tokens, or of 64 positions of the prompt."""
    max_total_msat: Msat = 10_000_000
    """The highest price of one job: its chunks and their verification share. Routing fees come on top, at most 2 sat or
    1 % a zap."""
    lump_msat: Msat = 0
    """The least of a payment to a provider. It holds as a balance what is not owed yet. 0: lumps grow as it earns them,
    until their fee is less than 1 %. 120 sat hold a first talk's fees at 1 %."""
    resplit_msat: Msat | None = None
    """The most that a generation may spend on moves to quicker rings, beside the cost to stay. 0 forbids moves. Empty:
    a quarter of the job's highest price. All its jobs together stay within `max_total_msat`."""
    lookahead: int = Field(default=1, ge=1, le=MAX_LOOKAHEAD)
    """The distance that generations may run ahead by guess, where providers take as much. 1: no guesses. The tokens are
    the same."""
    private_endpoints: bool = False
    """Pay providers whose LNURL endpoint is on a loopback or private address, over plain http. It is meant for a market
    on this machine or network."""

    @property
    def limits(self) -> Limits:
        """The limits of its workers."""
        return limits_of(self.worker, self.key, self.wallet.token_file)

    @model_validator(mode="after")
    def _guesses_with_its_draft(self) -> Self:
        check_draft(self.worker, self.lookahead)
        return self
