"""What the files of several roles have in common."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from nodewire.config.fields import (
    DEFAULT_WALLET,
    NAMES_NO_SECRET,
    Address,
    CommitteeAt,
    Congestion,
    Device,
    ManifestAt,
    Size,
    SpliceAt,
    WalletKind,
    parse_sat,
)
from nodewire.config.file import File, Section
from nodewire.kind import CAPTURED_BYTES, Limits
from nodewire.protocol.encoding.schema import Hex32
from nodewire.protocol.market.model_name import Alias
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD


class WalletConfig(Section):
    """The role's Lightning wallet. `token_file` holds the account's token, which the wallet service gave out."""

    kind: WalletKind = DEFAULT_WALLET
    """The kind of wallet. `sim` is the simulated network, `nwc` Nostr Wallet Connect, `lnbits` an LNbits service.
    `lnd`, `cln` and `phoenixd` are a node, `lexe` is a Lexe node, `electrum` an Electrum daemon, `cashu` ecash at
    a mint. An installed package may bring others."""
    url: str
    """The wallet service's URL."""
    token_file: Annotated[Path, NAMES_NO_SECRET]
    """The file with the account's token, connection string or key: all that is needed to spend the money."""
    network: Literal["", "bc", "tb", "tbs", "bcrt"] = ""
    """The Lightning network: `bc` is Bitcoin's own. If it is empty it is the kind's: `bcrt`, with play money, for
    `sim`. A wallet of another network is refused."""


class MetricsConfig(Section):
    """The Prometheus endpoint of the daemon. Nothing listens if `listen` is empty."""

    listen: Address | Literal[""] = ""
    """The host:port that Prometheus scrapes. Nothing listens if it is empty."""


class ModelPin(Section):
    """The model that a name stands for here."""

    manifest: ManifestAt
    """The model's address."""
    digest: Hex32 | None = None
    """The only accepted version of the manifest. Empty: every version that its author publishes."""


class Role(File):
    """Fields of every role's file."""

    key: Annotated[Path, NAMES_NO_SECRET]
    """The file with the role's nsec, mode 0600. It is made if missing."""
    relays: tuple[str, ...] = Field(min_length=1, max_length=8)
    """Websocket URLs. One that answers is enough."""
    blossom: tuple[str, ...] = Field(min_length=1, max_length=8)
    """Blob servers. A blob is read from the first that has it, and written to all."""
    committee: CommitteeAt
    """The committee's address."""
    committee_digest: Hex32 | None = None
    """The only accepted version of the committee, also after its founder publishes another."""
    state: Path
    """A folder for the ledger (SQLite) and cached blobs. Back it up: it records all payments."""
    names: dict[Alias, ModelPin] = Field(default={}, max_length=1_024)
    """Models by names of your own. `nodewire models pin` writes such a line."""

    @property
    def ledger(self) -> Path:
        return self.state / "ledger.db"

    @property
    def blobs(self) -> Path:
        return self.state / "blobs"


class WireConfig(Section):
    listen: Address = "127.0.0.1:0"
    """The address that this node listens on for providers and customers. Port 0 takes a free one."""
    announce: tuple[Address, ...] = Field(default=(), max_length=8)
    """Addresses at which others reach this node. Empty: the listening address. If that is 0.0.0.0 or [::], splices and
    the router tell the address."""
    splices: tuple[SpliceAt, ...] = Field(default=(), max_length=8)
    """Splices at which others meet this node if they cannot dial it. Empty: splices whose ads the relays have."""
    upnp: bool = True
    """Ask the router to open the port, if this node looks for its own address."""
    private: bool = False
    """Connect to private addresses, too, that peers, ads of splices and zap requests name: for one network, or machines
    of one VPN. It is on if all relays are at private addresses."""
    congestion: Congestion = "cubic"
    """The kernel's congestion control for this node's packets. `bbr` suits a line that loses packets; empty is the
    kernel's own choice. The role does not start with one that the kernel lacks, but for the default."""
    same_host: bool = True
    """Share memory, in place of TLS, with nodes that this user runs on this machine (Linux). Both must see the same
    temporary folder and process ids."""


class WorkerConfig(Section):
    memory: Size = 2 * 10**9
    """Bytes of memory that a worker may take above an empty one; enforced. All tasks of one process must fit in with
    its largest call. A task that does not fit is refused when it is loaded."""
    threads: int = Field(default=1, ge=1, le=256)
    """Threads of a worker. They keep to one CPU of each physical core, and to a hybrid processor's fast cores, while
    these are enough. CPUs that `taskset` or a container forbids stay forbidden."""
    processes: int = Field(default=1, ge=1, le=MAX_LOOKAHEAD)
    """Processes that share the served tasks, each with `memory` and `threads` of its own. Tasks of different processes
    compute at once."""
    batch: int = Field(default=1, ge=1, le=MAX_LOOKAHEAD)
    """The most calls of one task that are computed as one, from different jobs, if that keeps their rows apart. A row's
    last bits may differ from those of a single call."""
    device: Device = "cpu"
    """The device that computes tasks."""
    compiled: Path | None = None
    """A folder of libraries of graph tasks, made by `python -m nodewire.graph.compile FOLDER PROGRAM...`. The builder
    needs a C++ compiler and is in no sandbox: compile only models whose authors you trust. Empty: all tasks are
    interpreted."""
    draft: Path | None = None
    """The folder or GGUF file of a draft model, by which drivers here guess beside a session's own text. It needs the
    tokens of the driver's model and a `lookahead` above 1. It counts in `memory`, with keys and values of up to four
    sessions."""

    sandbox: Literal["full", "weak"] = "full"
    """Confinement of workers. `weak` starts workers also on a kernel that cannot confine them fully:
    docs/explanation/sandbox.md lists the losses."""
    graphs: bool = True
    """Capture steps of decoding by their shape and replay them, on a CUDA device. Captures take at most 1 GiB, out of
    the `memory` beside a task. A step that cannot be captured is computed as without."""

    @property
    def limits(self) -> Limits:
        compiled, draft = (str(path.absolute()) if path else "" for path in (self.compiled, self.draft))
        return Limits(self.memory, self.threads, self.device, compiled, draft, self.graphs, self.sandbox)

    @property
    def for_sessions(self) -> int:
        """Bytes that served tasks may take with `most` slots: as if all lay in one process, beside captured steps."""
        captured = CAPTURED_BYTES if self.graphs and self.device.startswith("cuda") else 0
        return max(0, self.memory - captured)


class HolderConfig(Section):
    """The bonds' holder, where it is not the wallet's own service: a registrar of coins that a quorum can spend."""

    kind: WalletKind
    """The kind of lock: `vault` on Bitcoin, or `ecash` of a mint, which is a custodian. A package may bring others."""
    url: str
    """The registrar's URL."""
    committee_digest: Hex32
    """The committee whose oracles can spend the coins: no other's document is believed."""
    bitcoin: Path | None = None
    """A file with one line, the RPC's URL of your own Bitcoin node: `http://USER:PASSWORD@127.0.0.1:8332/wallet/NAME`.
    A vault is locked out of its wallet and seen by it."""
    mint: str = ""
    """The URL of the mint that is trusted with the bond, for `ecash`."""
    cap: Annotated[int, BeforeValidator(parse_sat), Field(ge=1)] = 100_000
    """The most that is locked at the mint, for `ecash`: so much may be lost by it."""
    file: Path = Path("bonds.db")
    """The bonds' coins. With this file and the key they come back in their time, though nobody answers."""


def limits_of(worker: WorkerConfig, *secrets: Path) -> Limits:
    """The limits of a role's workers, and the files that no worker may read."""
    return replace(worker.limits, secrets=tuple(str(path.absolute()) for path in secrets))


def check_draft(worker: WorkerConfig, lookahead: int) -> None:
    """Raises ValueError: a draft model is named, and nothing that it guesses may be sent."""
    if worker.draft is not None and lookahead == 1:
        raise ValueError("worker.draft: does nothing with a lookahead of 1, at the top of the file")
