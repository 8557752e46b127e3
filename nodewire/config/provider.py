"""The file of a provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from nodewire.config.fields import Address, Amount, ManifestAt, Size
from nodewire.config.file import Section
from nodewire.config.role import (
    HolderConfig,
    MetricsConfig,
    Role,
    WalletConfig,
    WireConfig,
    WorkerConfig,
    check_draft,
    limits_of,
)
from nodewire.protocol.encoding.schema import Hex32, Label, Msat, Name
from nodewire.protocol.encoding.validation_errors import shaped
from nodewire.protocol.market.cached_price import WHOLE_PPM
from nodewire.protocol.speculation.frame_meta import MAX_LOOKAHEAD

if TYPE_CHECKING:
    from nodewire.kind import Limits


MintUrl = Annotated[str, shaped("^https?://", "a URL: https://host", max_length=256)]


class LnurlConfig(Section):
    listen: Address = "127.0.0.1:0"
    """The address that the LNURL-pay endpoint listens on."""
    url: str = ""
    """The public base URL of the endpoint. Empty: the listening address."""
    address: str = Field(default="", max_length=320)
    """The wallet's own lightning address (`name@host`), if its service gives it one. Zaps to it are taken, too: the
    service's receipts name them, and the wallet's record says whether they came."""


class NutzapConfig(Section):
    """Payments by nutzap (NIP-61). Nothing is taken if `mints` is empty."""

    mints: tuple[MintUrl, ...] = Field(default=(), max_length=8)
    """URLs of the Cashu mints whose ecash is taken. A mint is a custodian: name none that you would not leave the money
    with. Each has a purse of its own in the state folder."""


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
    first_msat: Msat = 100
    """The debt in msat of a key that has paid nothing, while its first job runs. Two chunks may always be unpaid."""
    most_msat: Msat = 1_000_000
    """The largest debt in msat that a key may have. It may have a tenth of what it has paid."""


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
    nutzap: NutzapConfig = NutzapConfig()
    """Payments in ecash, beside the wallet."""
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
    """Bytes of disk for frames: of jobs under way, and of sampled jobs that ended in the last ten epochs. A
    generation that may need more than is left is told `busy`."""
    pow_bits: int = Field(default=8, ge=0, le=40)
    """The NIP-13 work of a customer's request, in bits. More is asked of a key that has never paid here, or left three
    first chunks unpaid in ten minutes. It brings a bit more for each doubling of the unpaid first chunks beyond 16.
    Above 20 bits it is told `busy`. One origin has 8 such chunks at a time."""
    lookahead: int = Field(default=8, ge=1, le=MAX_LOOKAHEAD)
    """The distance that a driver may run ahead by guess, in rows of a frame and of each paid position. 1:
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
        return limits_of(self.worker, self.key, self.wallet.token_file)

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
        check_draft(self.worker, self.lookahead)
        if twice := {one.manifest for one in self.serve}.intersection(self.auto.manifests):
            raise ValueError(f"auto: {min(twice)} stands in [[serve]], too")
        if "auto" in self.model_fields_set and self.specialize is None:
            raise ValueError('auto: does nothing without specialize = "auto" at the top of the file')
        return self
