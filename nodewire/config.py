"""Configuration files: TOML, strict, with errors that name the file and the field. One model per role.

Paths are relative to the file that names them, so that a folder with its configuration can be moved.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from nodewire.errors import BadConfig, BadInput
from nodewire.kind import CAPTURED_BYTES, Limits
from nodewire.protocol.encoding.address import SPLICE_WORDS
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.encoding.schema import Hex32, Label, Msat, Name
from nodewire.protocol.encoding.validation_errors import in_words, shaped
from nodewire.protocol.market.cached_price import WHOLE_PPM
from nodewire.protocol.market.model_name import Alias
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD


def parse_msat(text: str) -> int:
    """Millisats from "100000sat", "5 msat" or "0.5sat".

    Raises:
        BadInput: it is none of these.

    """
    number, unit = text.strip().lower().replace(" ", ""), 1000
    if number.endswith("msat"):
        number, unit = number[:-4], 1
    elif number.endswith("sat"):
        number = number[:-3]
    elif re.fullmatch(r"\d+(\.\d+)?", number):
        raise BadInput("amount", f"{number} of what? Add a unit: {number}sat, or {number}msat for thousandths")
    try:
        value = Decimal(number) * unit
    except ArithmeticError as error:
        raise BadInput("amount", f"{text!r} is not an amount such as 500sat or 1200msat") from error
    if not value.is_finite() or not 0 <= value <= 2_100_000_000_000_000_000 or value != int(value):
        raise BadInput("amount", f"{text!r} is not a whole number of millisats in range")
    return int(value)


def msat_of(said: object) -> object:
    """An amount as a file has it: whole msat, or a text with a unit. Raises ValueError."""
    if isinstance(said, float):
        raise ValueError(f'{said}: write a text with a unit, such as "{said}sat", or whole msat')
    try:
        return parse_msat(said) if isinstance(said, str) else said
    except BadInput as error:
        raise ValueError(error.reason) from error


def _parse_sat(value: object) -> object:
    """Whole satoshis of an amount in text."""
    if not isinstance(value, str):
        return value
    msat = parse_msat(value)
    if msat % 1_000:
        raise ValueError("not whole satoshis")
    return msat // 1_000


Size = Annotated[int, BeforeValidator(parse_size), Field(ge=0)]
Amount = Annotated[Msat, BeforeValidator(msat_of)]
Address = Annotated[str, shaped(r"^[^\s]{1,255}:[0-9]{1,5}$", "host:port")]
SpliceAt = Annotated[str, shaped(r"^splice:[0-9a-f]{64}@[^\s]{1,255}:[0-9]{1,5}$", SPLICE_WORDS)]
_NAMED = r"[0-9a-f]{64}:[a-z0-9][a-z0-9._-]{0,63}$"
ManifestAt = Annotated[str, shaped(rf"^38840:{_NAMED}", "38840:<author's public key in hex>:<name>")]
CommitteeAt = Annotated[str, shaped(rf"^38841:{_NAMED}", "38841:<founder's public key in hex>:<name>")]
WalletKind = Annotated[str, shaped(r"^[a-z][a-z0-9_+-]{0,31}$", 'the name of a kind of wallet, such as "sim"')]
Congestion = Annotated[str, shaped(r"^[a-z0-9_-]{0,15}$", 'the name of a congestion control, such as "bbr"')]
Device = Annotated[str, shaped(r"^(cpu|cuda(:\d+)?|mps)$", 'a device: "cpu", "cuda", "cuda:1" or "mps"')]


DEFAULT_WALLET = "sim"
"""The kind of wallet where a file names none: an entry in the group `nodewire.wallets`."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WalletConfig(Section):
    """The role's Lightning wallet. `token_file` holds the account's token, which the wallet service gave out."""

    kind: WalletKind = DEFAULT_WALLET
    """The kind of wallet: `sim` is the simulated network, `nwc` Nostr Wallet Connect, `lnbits` an LNbits service,
    `lnd`, `cln` and `phoenixd` a node, `lexe` a Lexe node, `electrum` an Electrum daemon. An installed package may
    bring others."""
    url: str
    """The wallet service's URL."""
    token_file: Path
    """The file with the account's token, connection string or key: all that is needed to spend the money."""
    network: Literal["", "bc", "tb", "tbs", "bcrt"] = ""
    """The Lightning network: `bc` is Bitcoin's own. If it is empty it is the kind's: `bcrt`, with play money, for
    `sim`. A wallet of another network is refused."""


class File(Section):
    """The content of one TOML file."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """The configuration in the TOML file `path`.

        Raises:
            BadConfig: the file cannot be read, is not TOML, or a field is wrong.

        """
        text = _text(path)
        data = _parsed(path, text)
        try:
            return cls.model_validate(_resolved(cls, data, path.parent.resolve()))
        except ValidationError as error:
            # An unknown field first: it is often the misspelt name of one that is said to be missing.
            first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
            if first["type"] == "extra_forbidden":
                raise _unknown(path, text, first["loc"]) from error
            # Where a field may be of several types pydantic names the type beside it.
            where = ".".join(part for part in map(str, first["loc"]) if re.fullmatch(r"\w+", part))
            raise BadConfig(f"{path}: {where}", in_words(first)) from error


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

    key: Path
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


class LnurlConfig(Section):
    listen: Address = "127.0.0.1:0"
    """The address that the LNURL-pay endpoint listens on."""
    url: str = ""
    """The public base URL of the endpoint. Empty: the listening address."""
    address: str = Field(default="", max_length=320)
    """The wallet's own lightning address (`name@host`), if its service gives it one. Zaps to it are taken, too: the
    service's receipts name them, and the wallet's record says whether they came."""


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


def _limits(worker: WorkerConfig, *secrets: Path) -> Limits:
    """The limits of a role's workers, and the files that no worker may read."""
    return replace(worker.limits, secrets=tuple(str(path.absolute()) for path in secrets))


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
    cap: Annotated[int, BeforeValidator(_parse_sat), Field(ge=1)] = 100_000
    """The most that is locked at the mint, for `ecash`: so much may be lost by it."""
    file: Path = Path("bonds.db")
    """The bonds' coins. With this file and the key they come back in their time, though nobody answers."""


class BondConfig(Section):
    """The provider's stake with the bond holder, and its term; no stake at 0."""

    amount_msat: Msat = 0
    """The stake with the bond holder. The wallet locks it at the start, and it is kept up."""
    days: int = Field(default=30, ge=1, le=3_650)
    """The term of the bond in days, counted from now."""


class Serve(Section):
    """A specialization: tasks of one manifest, and the price of a chunk of each."""

    manifest: ManifestAt
    """The model's address."""
    digest: Hex32 | None = None
    """The only version of the manifest that is served. Empty: every version that its author publishes."""
    tasks: tuple[Name, ...] = Field(min_length=1, max_length=1_024)
    """The tasks of the manifest that this provider serves."""
    price_per_million: Amount | None = None
    """The price of each task for a million tokens of prompt or answer: a text such as "187.5sat", or whole msat. Chunks
    of 64 are paid in whole msat, so it goes by steps of 15.625 sat. Another one is refused, with the nearest two."""
    price_msat: Msat | None = None
    """The price of each task for a chunk, in place of `price_per_million`. A decoder's prompt counts by every 64
    positions, its answer by every 64 tokens; a begun chunk counts whole. An encoder's call is one chunk."""
    slots: Annotated[int, Field(ge=1, le=4_096)] | Literal["most"] | None = None
    """Sessions of the whole context at once, or more of shorter ones. Empty: the manifest's number. "most": all that
    `memory` has room for."""
    us_per_position: int | None = Field(default=None, ge=1, le=2**40)
    """The speed that the ad claims, in microseconds. Empty: the speed that `nodewire profile` measured, or the daemon
    at its start."""

    @model_validator(mode="after")
    def _has_one_price(self) -> Self:
        if (self.price_msat is None) == (self.price_per_million is None):
            raise ValueError(
                "price_msat: name one price, price_per_million (for tokens) or price_msat (for a chunk, or a call)"
            )
        return self


class AutoConfig(Section):
    """The choice of tasks by a provider with `specialize = "auto"`; `rest` and `patience` in epochs."""

    manifests: tuple[ManifestAt, ...] = Field(default=(), max_length=64)
    """Addresses of the models that it chooses from. Empty: all models whose holders the committee certifies and that
    the relays carry."""
    memory: Size | None = None
    """Bytes of memory for all chosen tasks. Empty: the memory of the worker's processes, less `[[serve]]`. A move
    interrupts nothing if old and new tasks fit in together; else the old ones go first."""
    disk: Size = 50 * 10**9
    """Bytes of disk for the blobs that it fetched for these tasks. The least recently used go first."""
    slots: int = Field(default=4, ge=1, le=4_096)
    """Sessions at once."""
    price_ppm: int = Field(default=1_000_000, ge=0, le=10_000_000)
    """The price, in millionths of the median price of other providers for the task."""
    least_msat: Msat = 1
    """The least price of a task and chunk, and the price where no other provider asks any."""
    rest: int = Field(default=60, ge=1, le=100_000)
    """Epochs without another move after a move."""
    patience: int = Field(default=6, ge=1, le=1_000)
    """Epochs in a row in which another place must have been better."""


class TrainConfig(Section):
    """Rounds of training that a provider takes, and their prices. Memory and device are the worker's."""

    kinds: tuple[Literal[8840, 8841, 8842], ...] = Field(default=(8840, 8841), min_length=1)
    """8840 is a FedAvg round, 8841 a DiLoCo round, 8842 an outer step, which may also stand alone."""
    families: tuple[Literal["linear", "mlp", "cnn", "decoder", "encoder"], ...] = Field(
        default=("linear", "mlp", "cnn", "decoder", "encoder"), min_length=1, max_length=16
    )
    """Families of models that it trains."""
    msat_per_pflop: Msat
    """A round's price for 10^15 operations."""
    least_msat: Msat = 1_000
    """The least price of a round."""
    gflops: int = Field(default=10, ge=1, le=2**40)
    """The speed that the ad claims, in 10^9 operations a second."""
    concurrency: int = Field(default=1, ge=1, le=MAX_LOOKAHEAD)
    """Rounds at a time, each in a worker of its own with `[worker] memory`. `doctor` reports too little memory."""
    deposit_ppm: int = Field(default=200_000, ge=0, le=1_000_000)
    """The part of the price that is paid before a customer's first round, in millionths. Later the payment for the
    round before stands for it, once. Customers ask no provider that wants more than 500000."""
    credit_msat: Msat = 0
    """The debt that a customer may have, besides the round before, while its next round is trained. Customers put
    audits and payments off as far as this lets them."""
    most: Size = 2 * 10**9
    """The most bytes of weights, or of a shard, that it fetches."""
    fedstr: bool = False
    """Serve requests in FEDSTR's layout (kind 8000), too. Their weights and shards are fetched from URLs."""
    private_endpoints: bool = False
    """Fetch these from loopback and private addresses, too, and from them over plain http."""

    @model_validator(mode="after")
    def _trains_for_fedstr(self) -> Self:
        if self.fedstr and not {8840, 8841}.intersection(self.kinds):
            raise ValueError("fedstr: neither 8840 nor 8841 is among the kinds")
        return self


class CreditConfig(Section):
    first_msat: Msat = 1_000
    """What a key that has paid nothing may owe while its first job runs, in msat. Two chunks may always be unpaid."""
    most_msat: Msat = 1_000_000
    """What a key may owe at most, in msat. It may owe no more than it has paid."""


class ProviderConfig(Role):
    holder: HolderConfig | None = None
    """The bonds' holder. Empty: the wallet's own service."""
    name: Name | Literal[""] = ""
    """The ad's name. Empty: a name made of the key."""
    hardware: Label = ""
    """The hardware, as the ad shows it."""
    region: Label = ""
    """The region, as the ad shows it. Customers may ask for regions."""
    wire: WireConfig = WireConfig()
    """The node's addresses and links."""
    lnurl: LnurlConfig = LnurlConfig()
    """The endpoint that gives customers invoices."""
    metrics: MetricsConfig = MetricsConfig()
    """The Prometheus endpoint."""
    wallet: WalletConfig
    """The wallet that is paid."""
    worker: WorkerConfig = WorkerConfig()
    """The processes that compute."""
    bond: BondConfig = BondConfig()
    """The bond."""
    serve: tuple[Serve, ...] = Field(default=(), max_length=64)
    """The specializations, a table for each."""
    specialize: Literal["auto"] | None = None
    """`auto` holds the tasks that the market lacks most, beside those in `[[serve]]`, and follows the market."""
    auto: AutoConfig = AutoConfig()
    """The choice of `specialize = "auto"`."""
    train: TrainConfig | None = None
    """Rounds of training. A provider has this, `[[serve]]` or `specialize`, or several."""
    spool: Size = 10 * 10**9
    """Bytes of disk for the frames of jobs under way, and of sampled jobs that ended in the last ten epochs. A
    generation that may need more than is left is told `busy`."""
    pow_bits: int = Field(default=8, ge=0, le=40)
    """The NIP-13 work of a customer's request, in bits. More is asked of a key that has never paid here, or left three
    first chunks unpaid in ten minutes. It brings a bit more for each doubling of the unpaid first chunks beyond 16.
    Above 20 bits it is told `busy`. One origin has 8 such chunks at a time."""
    lookahead: int = Field(default=8, ge=1, le=MAX_LOOKAHEAD)
    """The distance that a generation's driver may run ahead by guess, in rows of a frame and of each paid position. 1:
    no guesses."""
    prefixes: Literal["own", "shared", "off"] = "own"
    """The customers for whom decoder stages keep results for the beginnings of prompts. `own`: the same customer.
    `shared`: any customer that sends them again, so time and price tell that another one has. `off`: none. The results
    take memory that no session needs."""
    cached_ppm: int = Field(default=500_000, ge=1, le=WHOLE_PPM)
    """The price of 64 positions that a stage kept so, in millionths of the full price."""
    credit: CreditConfig = CreditConfig()
    """The credit of customers."""
    patience_s: int = Field(default=30, ge=1, le=3_600)
    """Seconds that a delivered chunk may stay unpaid before its customer is in debt. Jobs that broke off are counted
    apart."""

    @property
    def limits(self) -> Limits:
        """The limits of its workers."""
        return _limits(self.worker, self.key, self.wallet.token_file)

    @property
    def found_ppm(self) -> int:
        """What the ad says of it."""
        return self.cached_ppm if self.prefixes != "off" else WHOLE_PPM

    @model_validator(mode="after")
    def _no_task_twice(self) -> Self:
        served = [(s.manifest, task) for s in self.serve for task in s.tasks]
        if len(served) != len(set(served)):
            raise ValueError("serve: a task is named twice")
        if not self.serve and self.train is None and self.specialize is None:
            raise ValueError(
                'serve: nothing is sold here: neither [[serve]] nor [train] nor specialize = "auto" stands in the file'
            )
        _check_draft(self.worker, self.lookahead)
        if twice := {one.manifest for one in self.serve}.intersection(self.auto.manifests):
            raise ValueError(f"auto: {min(twice)} stands in [[serve]], too")
        if "auto" in self.model_fields_set and self.specialize is None:
            raise ValueError('auto: does nothing without specialize = "auto" at the top of the file')
        return self


Person = Annotated[str, shaped(r"^[a-z0-9]{5,5000}$|^30000:[a-z0-9]{63,64}:.{0,255}$", "an npub, naddr or list")]


class Whom(Section):
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
    whom: Whom = Whom()
    """The choice of providers, and the part of the model on this machine."""
    wire: WireConfig = WireConfig()
    """The customer's addresses and links."""
    worker: WorkerConfig = WorkerConfig()
    """The processes for tasks that run on this machine."""
    max_chunk_msat: Msat = 100_000
    """The highest price of a unit over all tasks: of 64 tokens, or of 64 positions of the prompt."""
    max_total_msat: Msat = 10_000_000
    """The highest price of one job: its chunks and their verification share. Routing fees come on top, at most 1 sat or
    1 % a zap."""
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
        return _limits(self.worker, self.key, self.wallet.token_file)

    @model_validator(mode="after")
    def _guesses_with_its_draft(self) -> Self:
        _check_draft(self.worker, self.lookahead)
        return self


def _check_draft(worker: WorkerConfig, lookahead: int) -> None:
    """Raises ValueError: a draft model is named, and nothing that it guesses may be sent."""
    if worker.draft is not None and lookahead == 1:
        raise ValueError("worker.draft: does nothing with a lookahead of 1, at the top of the file")


class BondsConfig(Section):
    """The bond holder. `token_file`: the oracle's account there, which its earnings are paid into."""

    kind: WalletKind = DEFAULT_WALLET
    """The kind of wallet, as in `[wallet]`."""
    url: str
    """The bond holder's URL. Certified verdicts are presented there, and it says which passes count."""
    token_file: Path | None = None
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
        return _limits(self.worker, *secrets)

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


AnyRole = CustomerConfig | ProviderConfig | OracleConfig


def load_role(path: Path) -> AnyRole:
    """The file as the role whose fields it has: a seat is an oracle's, sales are a provider's. Raises BadConfig."""
    text = _text(path)
    data = _parsed(path, text)
    _no_other_tables(path, text, data)
    if "seat" in data:
        return OracleConfig.load(path)
    return (
        ProviderConfig.load(path)
        if (ProviderConfig.model_fields.keys() - CustomerConfig.model_fields.keys()) & data.keys()
        else CustomerConfig.load(path)
    )


def _no_other_tables(path: Path, text: str, data: dict[str, Any]) -> None:
    """Refuse a table that no role has: without it the file may look like another role's."""
    models = CustomerConfig, ProviderConfig, OracleConfig
    known = {name: field for model in models for name, field in model.model_fields.items()}
    headers = {name: f"[[{name}]]" if get_origin(known[name].annotation) is tuple else f"[{name}]" for name in known}
    for name, value in data.items():
        is_list = isinstance(value, list) and any(isinstance(one, dict) for one in value)
        if name in known or not (is_list or isinstance(value, dict)):
            continue
        line = line_of(name, "", 0, text)
        close = get_close_matches(name, [name for name in known if _section(known[name].annotation)], n=1)
        said = f"unknown table {f'[[{name}]]' if is_list else f'[{name}]'}"
        said += f"; did you mean {headers[close[0]]}?" if close else ""
        raise BadConfig(f"{path}, line {line}" if line else str(path), said)


def _section(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that is a table or tables, if it is one."""
    kinds = (kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type))
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadConfig(str(path), "is not UTF-8 text") from error


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(str(path), f"is not TOML: {error}") from error


def _unknown(path: Path, text: str, where: tuple[int | str, ...]) -> BadConfig:
    """The error for a field that no model has; `where` are the keys and list indices that lead to it."""
    *outer, name = where
    section = ".".join(part for part in outer if isinstance(part, str))
    index = next((part for part in outer if isinstance(part, int)), None)
    line = line_of(str(name), section, index or 0, text)
    header = f"[{section}]" if index is None else f"[[{section}]] number {index + 1}"
    said = f"unknown field {str(name)!r}" + (f" in {header}" if section else "")
    return BadConfig(f"{path}, line {line}" if line else str(path), said)


def line_of(name: str, section: str, index: int, text: str) -> int:
    """The line of the field or table `name` in the `index`-th table `section`; 0 if it is written in another way."""
    here, seen = "", {"": 0}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([^\]]*?)\s*\]", line):
            here = header[2]
            seen[here] = seen.get(here, -1) + 1
            if here == (f"{section}.{name}" if section else name):
                return number
        elif (here, seen[here]) == (section, index) and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[=.]", line):
            return number
    return 0


def _resolved(model: type[BaseModel], data: Any, folder: Path) -> Any:
    """`data` with the values of Path fields made absolute."""
    if not isinstance(data, dict):
        return data
    out = dict(data)
    for name, field in model.model_fields.items():
        if name not in out:
            continue
        if Path in (field.annotation, *get_args(field.annotation)) and isinstance(out[name], str):
            out[name] = folder / Path(out[name]).expanduser()
        elif section := _section(field.annotation):
            out[name] = _resolved(section, out[name], folder)
    return out
