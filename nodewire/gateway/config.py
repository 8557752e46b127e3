"""The gateway's TOML file: where it listens, what it sells under which names, and to whom."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from nodewire.config import Address, File, ManifestAt, MetricsConfig, Section, Size
from nodewire.errors import BadConfig
from nodewire.net.loopback import host_of, is_loopback
from nodewire.protocol.encoding.schema import Hex32, Label, Msat
from nodewire.protocol.encoding.validation_errors import shaped
from nodewire.protocol.job.plan import Terms

ModelName = Annotated[
    str,
    shaped(r"^([A-Za-z0-9][A-Za-z0-9._:/-]{0,127}|\*)$", "a name (letters, digits and . _ : / -), or * for all others"),
]
KeyName = Annotated[str, shaped(r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$", "a name: letters, digits and . _ @ -")]
Origin = Annotated[str, shaped(r"^https?://[A-Za-z0-9.\[\]:-]{1,255}$", "an origin, such as https://app.example")]


ANY = "*"
MAX_CALLED_CHARS = 512


class ModelConfig(Section):
    """What clients call by `name`: a manifest, and the terms under which its work is bought for one request.

    The name `*` has the terms of every model that is called by another name, or by its address.
    """

    name: ModelName
    """The name by which clients call the model. `*` has the terms of every other model of the market, which clients
    call by name or address. `/v1/models` lists of these the pinned ones; metrics call them `*`."""
    manifest: ManifestAt | None = None
    """The model's address. Empty: the name is looked for as the customer looks for it."""
    digest: Hex32 | None = None
    """The only accepted version of the manifest. Empty: every version that its author publishes."""
    max_chunk_msat: Msat | None = None
    """The highest price of a chunk of one request. Empty: the customer's."""
    max_total_msat: Msat | None = None
    """The highest price of one request. Empty: the customer's."""
    max_tokens: int = Field(default=4_096, ge=1, le=1_000_000)
    """The most tokens that a request may ask for, and the number for a chat that names none. The model's context is a
    bound, too."""
    verify: bool = False
    """Have the committee compute a sample of the work again. No request waits for the verdict."""
    driver: Literal["provider", "local", "ends"] | None = None
    """The part of the model on this machine. Empty: the customer's `[whom]`; so with the four that follow."""
    trusted: tuple[Hex32, ...] = Field(default=(), max_length=64)
    """The only keys to buy from, if not empty."""
    ends: tuple[Hex32, ...] = Field(default=(), max_length=64)
    """The only keys for the driver, and for the first and last layers, if not empty."""
    excluded: tuple[Hex32, ...] = Field(default=(), max_length=64)
    """Keys that are never bought from."""
    regions: tuple[Label, ...] = Field(default=(), max_length=16)
    """The only regions to buy from, if not empty, by the providers' own word."""
    template: Path | None = None
    """A file with the chat template. Empty: the manifest's."""
    _label: str = PrivateAttr(default="")

    @model_validator(mode="after")
    def _is_one_or_any(self) -> Self:
        if self.name == ANY and (self.manifest is not None or self.digest is not None):
            raise ValueError("manifest: * stands for every model, not for one")
        return self

    @property
    def label(self) -> str:
        """The name in the file, whatever a client has called the model."""
        return self._label or self.name

    def called(self, name: str) -> Self:
        """These terms, for the model that a client calls `name`."""
        copy = self.model_copy(update={"name": name})
        copy._label = self.label
        return copy

    def terms(self, own: Terms) -> Terms:
        """For one request; `own` are the customer's."""
        return Terms(
            max_chunk_msat=own.max_chunk_msat if self.max_chunk_msat is None else self.max_chunk_msat,
            max_total_msat=own.max_total_msat if self.max_total_msat is None else self.max_total_msat,
            trusted=self.trusted or own.trusted,
            ends=self.ends or own.ends,
            excluded=self.excluded or own.excluded,
            regions=self.regions or own.regions,
            driver=self.driver or own.driver,
            lookahead=own.lookahead,
            verify="sampled" if self.verify else "none",
        )


class KeyConfig(Section):
    """An API key, of which the file has the SHA-256, or the name of an environment variable that holds it."""

    name: KeyName
    """The name of its account. A name used again has the account that it had."""
    sha256: Hex32 | None = None
    """The key's hash, as `nodewire gateway --new-key` prints it."""
    env: Annotated[str, shaped(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$", "the name of an environment variable")] | None = None
    """The environment variable that holds the key, in place of `sha256`."""
    budget_msat: Msat | None = None
    """The total that the key may ever spend. Empty: no limit. A higher budget lets the key go on."""
    per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    """Requests a minute: so many at once, then one every 60 s / `per_minute`. Empty: no limit."""
    at_a_time: int | None = Field(default=None, ge=1, le=1_024)
    """The most requests of the key that are under way or wait. More get 429. Empty: no limit of its own."""
    models: tuple[ModelName, ...] = Field(default=(), max_length=64)
    """Models that the key may use; `*` is every model that the file does not name. Empty: all."""

    @model_validator(mode="after")
    def _is_said_once(self) -> Self:
        if (self.sha256 is None) == (self.env is None):
            raise ValueError("sha256: either it or env is needed")
        return self


class GatewayConfig(File):
    customer: Path
    """The customer's TOML file, with the key and the wallet that buy. No other process may buy with it meanwhile."""
    state: Path
    """A folder for the accounts of keys (SQLite). Back it up."""
    listen: Address = "127.0.0.1:8080"
    """The host:port that the gateway listens on. An address that is not this machine's own needs `[[keys]]`, and TLS in
    front of it."""
    models: tuple[ModelConfig, ...] = Field(min_length=1, max_length=64)
    """The models for sale, by name."""
    keys: tuple[KeyConfig, ...] = Field(default=(), max_length=1_024)
    """API keys. Without any, only requests whose `Host` is localhost or 127.0.0.1 are answered."""
    cors: tuple[Origin, ...] = Field(default=(), max_length=16)
    """Origins whose pages browsers may let ask, such as https://app.example. A request with another `Origin` is
    refused."""
    max_body: Size = 2 * 2**20
    """The largest request, in bytes."""
    max_requests: int = Field(default=16, ge=1, le=1_024)
    """The most requests under way at a time."""
    max_waiting: int = Field(default=64, ge=0, le=4_096)
    """The most requests that wait for such a place. The next place goes to another key's request if there is one;
    without keys, to another address's."""
    wait_s: int = Field(default=30, ge=1, le=3_600)
    """The most seconds that a request waits. Then it is told `busy` (503, `Retry-After`)."""
    drain_s: int = Field(default=10, ge=0, le=3_600)
    """Seconds for requests under way when the gateway is stopped. Nothing is bought for them after that."""
    request_s: int = Field(default=600, ge=1, le=86_400)
    """The most seconds that a request may take."""
    metrics: MetricsConfig = MetricsConfig()
    """The Prometheus endpoint. `/metrics` is also at `listen`, for requests with a key."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for what, names in (("models", [m.name for m in self.models]), ("keys", [k.name for k in self.keys])):
            if len(set(names)) != len(names):
                raise ValueError(f"{what}: a name stands twice")
        known = {model.name for model in self.models}
        if ANY not in known and (unknown := {name for key in self.keys for name in key.models} - known):
            raise ValueError(f"keys: no model is called {min(unknown)}")
        if not self.keys and not is_loopback(host_of(self.listen)):
            raise ValueError("listen: whoever reaches this address could spend; name [[keys]], or listen on 127.0.0.1")
        return self

    @property
    def accounts(self) -> Path:
        return self.state / "gateway.db"


def secret_in(name: str) -> str:
    """The API key in an environment variable. Raises BadConfig."""
    found = os.environ.get(name, "")
    if len(found) < 16:
        raise BadConfig(f"keys: {name}", "is not set, or holds fewer than 16 characters")
    return found
