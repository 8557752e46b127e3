"""The file of an oracle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from nodewire.config.fields import DEFAULT_WALLET, NAMES_NO_SECRET, Size, WalletKind
from nodewire.config.file import File, Section
from nodewire.config.role import HolderConfig, MetricsConfig, WalletConfig, WorkerConfig, limits_of

if TYPE_CHECKING:
    from nodewire.kind import Limits


class BondsConfig(Section):
    """The bond holder. `token_file`: the oracle's account there, which its earnings are paid into."""

    kind: WalletKind = DEFAULT_WALLET
    """The kind of wallet, as in `[wallet]`."""
    url: str
    """The bond holder's URL. Certified verdicts are presented there, and it says which passes count."""
    token_file: Annotated[Path | None, NAMES_NO_SECRET] = None
    """The file with the oracle's account there: earnings of verdicts and its part of the fees are pulled into it."""


class OracleConfig(File):
    """`seat` is the oracle's folder of secrets, `committee` the committee's document (both by `committee create`).

    Without `worker` the oracle computes nothing again: where that is what decides, it joins the other oracles. Without
    `bonds` it leaves to the others to present certified verdicts.
    """

    seat: Path
    """The folder with the seat's secrets, made by `nodewire committee create`."""
    committee: Path
    """The committee's document, `committee.json`."""
    state: Path
    """A folder for the journal and blobs. An oracle without its `state` must not run again: it could vote twice."""
    relays: tuple[str, ...] = Field(min_length=1, max_length=16)
    """Websocket URLs."""
    blossom: tuple[str, ...] = Field(min_length=1, max_length=16)
    """Blob servers. Certificates and what they cite are uploaded there."""
    worker: WorkerConfig | None = None
    """The processes that compute disputed chunks again. An oracle without them joins those that do."""
    holder: HolderConfig | None = None
    """The bonds' holder, if its coins are not at a service of `[bonds]`."""
    bonds: BondsConfig | None = None
    """The bond holder. Without it others present verdicts, and list the passes."""
    metrics: MetricsConfig = MetricsConfig()
    """The Prometheus endpoint."""
    disk: Size = 50 * 10**9
    """Bytes of disk for the blobs that it has read. Every hour the blobs go that nobody used in 30 days, then the least
    recently used. Blobs that workers hold stay, and those that were read in the last hour or eight epochs."""

    @property
    def limits(self) -> Limits | None:
        """The limits of its workers; None for an oracle without workers."""
        if self.worker is None:
            return None
        secrets = [self.seat / name for name in ("key", "share")]
        if self.wallet is not None:
            secrets.append(self.wallet.token_file)
        return limits_of(self.worker, *secrets)

    @property
    def key(self) -> Path:
        return self.seat / "key"

    @property
    def blobs(self) -> Path:
        return self.state / "blobs"

    @property
    def wallet(self) -> WalletConfig | None:
        """Its account at the bonds' holder, if it has one."""
        if self.bonds is None or self.bonds.token_file is None:
            return None
        return WalletConfig(kind=self.bonds.kind, url=self.bonds.url, token_file=self.bonds.token_file)
