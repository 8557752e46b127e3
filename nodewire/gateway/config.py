"""The gateway's TOML file: where it listens, what it sells under which names, and to whom."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from nodewire.config import Address, File, ManifestAt, MetricsConfig, Section, Size
from nodewire.errors import BadConfig
from nodewire.loopback import host_of, is_loopback
from nodewire.protocol.faults import shaped
from nodewire.protocol.plan import Terms
from nodewire.protocol.schema import Hex32, Label, Msat

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

    Of the name `*` the terms are those of every model that is called by another name, or by its address.
    """

    name: ModelName
    manifest: ManifestAt | None = None
    """If not given, the name is looked for as the customer looks for it."""
    digest: Hex32 | None = None
    """Only this version of the manifest; whatever its author publishes if empty."""
    max_chunk_msat: Msat | None = None
    """The customer's, if not given; `max_total_msat` likewise."""
    max_total_msat: Msat | None = None
    max_tokens: int = Field(default=4_096, ge=1, le=1_000_000)
    """The most that a request may ask for; a chat that asks for no number gets as many at most."""
    verify: bool = False
    """Have the committee compute a sample of it again; nobody waits for that."""
    driver: Literal["provider", "local", "ends"] | None = None
    """What runs here. The customer's [whom], if not given; so with the four that follow."""
    trusted: tuple[Hex32, ...] = Field(default=(), max_length=64)
    ends: tuple[Hex32, ...] = Field(default=(), max_length=64)
    excluded: tuple[Hex32, ...] = Field(default=(), max_length=64)
    regions: tuple[Label, ...] = Field(default=(), max_length=16)
    template: Path | None = None
    """A file with the chat template, in place of the manifest's."""
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
    """By which its account is kept."""
    sha256: Hex32 | None = None
    env: Annotated[str, shaped(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$", "the name of an environment variable")] | None = None
    budget_msat: Msat | None = None
    """All that may ever be spent with it; raise it to let it go on. No limit if not given."""
    per_minute: int | None = Field(default=None, ge=1, le=1_000_000)
    """Requests, as many of them at once. No limit if not given."""
    at_a_time: int | None = Field(default=None, ge=1, le=1_024)
    """Requests that are under way or wait. No limit of its own if not given."""
    models: tuple[ModelName, ...] = Field(default=(), max_length=64)
    """The only ones that it may use; all if empty."""

    @model_validator(mode="after")
    def _is_said_once(self) -> Self:
        if (self.sha256 is None) == (self.env is None):
            raise ValueError("sha256: either it or env is needed")
        return self


class GatewayConfig(File):
    customer: Path
    """The customer's TOML file: who buys, and with which wallet."""
    state: Path
    """A folder for the accounts of keys."""
    listen: Address = "127.0.0.1:8080"
    models: tuple[ModelConfig, ...] = Field(min_length=1, max_length=64)
    keys: tuple[KeyConfig, ...] = Field(default=(), max_length=1_024)
    """Without any, whoever reaches the address buys."""
    cors: tuple[Origin, ...] = Field(default=(), max_length=16)
    """Web pages that browsers may let ask here; none if empty."""
    max_body: Size = 2 * 2**20
    max_requests: int = Field(default=16, ge=1, le=1_024)
    """That are bought for at a time."""
    max_waiting: int = Field(default=64, ge=0, le=4_096)
    """That wait for one of these to end, key by key in turn."""
    wait_s: int = Field(default=30, ge=1, le=3_600)
    """The most that one waits."""
    drain_s: int = Field(default=10, ge=0, le=3_600)
    """For what is under way when the gateway is stopped; what is left then is not bought further."""
    request_s: int = Field(default=600, ge=1, le=86_400)
    """The most that one may take."""
    metrics: MetricsConfig = MetricsConfig()

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
