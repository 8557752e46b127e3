"""The HTTP client of the wallets that are services of their owner's: bounds, certificates and errors alike for all."""

from __future__ import annotations

import re
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import orjson

from nodewire.errors import (
    BadConfig,
    BadInput,
    LinkLost,
    NotAllowed,
    NotFound,
    PaymentFailed,
    TimedOut,
    Unsupported,
)
from nodewire.net import address_policy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from nodewire.pay.lightning.wallet import Ability

MAX_ANSWER_BYTES = 4_000_000
MAX_SECRET_CHARS = 16_384
NETWORKS = {
    "mainnet": "bc",
    "bitcoin": "bc",
    "testnet": "tb",
    "testnet3": "tb",
    "testnet4": "tb",
    "signet": "tbs",
    "regtest": "bcrt",
}
"""Networks as nodes name them, and as bolt11 does."""
_HEX32 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_KEY = re.compile(r"0[23][0-9a-f]{64}", re.ASCII)
_SECRET = re.compile(r"[!-~]+", re.ASCII)
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----")
_MOST_DIGITS = 19
_OTHER = "is it a service of this kind (`kind` in [wallet], --kind)?"


@dataclass(frozen=True, slots=True)
class Access:
    """What opens an account at a service: a secret, and the certificates (PEM) that the service is known by.

    Without certificates those count that this machine trusts.
    """

    secret: str = field(repr=False)
    certificates: str = field(default="", repr=False)

    @classmethod
    def read(cls, token_file: Path | None, what: str) -> Self:
        """The access in `token_file`. Certificates may stand around the secret; white space in it does not count.

        Raises:
            BadConfig: the file cannot be read, has no secret, or certificates that are none. `what` names the secret.

        """
        if token_file is None:
            raise BadConfig("wallet.token_file", f"name the file with {what}")
        try:
            text = token_file.read_text()
        except OSError as error:
            raise BadConfig(str(token_file), f"cannot be read ({error.strerror}); put {what} there") from error
        except UnicodeDecodeError as error:
            raise BadConfig(str(token_file), f"it is no text; put {what} there") from error
        found = cls("".join(_CERTIFICATE.sub(" ", text).split()), "\n".join(_CERTIFICATE.findall(text)))
        if len(found.secret) > MAX_SECRET_CHARS or _SECRET.fullmatch(found.secret) is None:
            raise BadConfig(str(token_file), f"it has not {what}, in printable ASCII")
        try:
            found.context()
        except ssl.SSLError as error:
            raise BadConfig(str(token_file), "its certificates are none: copy the service's PEM file whole") from error
        return found

    def context(self) -> ssl.SSLContext:
        """TLS that believes these certificates alone, or those of this machine if there are none."""
        context = ssl.create_default_context(cadata=self.certificates or None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # what nodes make for themselves lacks key identifiers
        return context


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the service at `url`: a status, and a document of at most MAX_ANSWER_BYTES."""

    status: int
    raw: bytes
    url: str = ""

    def document(self) -> Any:
        """The JSON in it. Raises LinkLost: it is none."""
        try:
            return orjson.loads(self.raw)
        except orjson.JSONDecodeError as error:
            raise LinkLost("wallet", f"{self.url} answered {self.status} and no JSON: {_OTHER}") from error

    def members(self) -> dict[str, Any]:
        """The JSON object in it. Raises LinkLost: it is none."""
        found = self.document()
        if not isinstance(found, dict):
            raise LinkLost("wallet", f"{self.url} answered {self.status} and nothing of its own: {_OTHER}")
        return found


class RestService:
    """A service at `url`, asked with `headers` that have its secret. They follow no redirect."""

    def __init__(self, url: str, headers: Mapping[str, str], access: Access, *, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._headers = dict(headers)
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        form: dict[str, str] | None = None,
        wait_s: float = 0.0,
    ) -> Answer:
        """Its answer, of whatever status. `wait_s` is how much longer than for others the service may take for it.

        Raises:
            BadInput: its address is no URL.
            LinkLost, TimedOut: no answer, one of over MAX_ANSWER_BYTES, or not by one that its certificate names.

        """
        limit = aiohttp.ClientTimeout(total=self.timeout_s + wait_s)
        async with self._request(method, path, limit, json=body, data=form) as response:
            raw = bytearray()
            async for piece in response.content.iter_chunked(65_536):
                raw += piece
                if len(raw) > MAX_ANSWER_BYTES:
                    raise _too_large()
            return Answer(response.status, bytes(raw), self.url)

    async def lines(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, wait_s: float
    ) -> AsyncGenerator[Answer, None]:
        """The lines of its answer as they come, until it ends. Raises as `ask`; TimedOut after `wait_s` of silence."""
        limit = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout_s, sock_read=self.timeout_s + wait_s)
        async with self._request(method, path, limit, json=body) as response:
            rest = b""
            async for piece in response.content.iter_any():
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    if line.strip():
                        yield Answer(response.status, line, self.url)
                if len(rest) > MAX_ANSWER_BYTES:
                    raise _too_large()
            if rest.strip():
                yield Answer(response.status, rest, self.url)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, limit: aiohttp.ClientTimeout, **content: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            dials = connector(self.url, self._access.context())
            self._session = aiohttp.ClientSession(headers=self._headers, connector=dials)
        try:
            async with self._session.request(
                method, self.url + path, timeout=limit, allow_redirects=False, **content
            ) as response:
                yield response
        except TimeoutError as error:
            raise TimedOut("wallet", f"no answer from {self.url}") from error
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise BadInput("wallet", f"{self.url!r} is no URL such as https://wallet.example") from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            named = "that the token file has" if self._access.certificates else "that this machine trusts"
            raise LinkLost("wallet", f"{self.url}: it shows no certificate {named}, or none for that name") from error
        except aiohttp.ClientError as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise LinkLost("wallet", f"{self.url}: {reason}") from error


def connector(url: str, context: ssl.SSLContext | bool = True, *, force_close: bool = False) -> aiohttp.TCPConnector:
    """A connector to a service. Plain http shows the secret on the way, so it is for networks of one's own alone.

    Raises:
        NotAllowed: plain http to a public address.

    """
    if url.lower().startswith("http://"):
        return address_policy.connector(address_policy.parse(url), allow_private=True, force_close=force_close)
    return aiohttp.TCPConnector(ssl=context, force_close=force_close)


async def permitted(tries: Mapping[Ability, Callable[[], Awaitable[object]]]) -> set[Ability]:
    """The abilities whose call the secret is permitted. Each call is one that can do nothing.

    Raises:
        LinkLost, TimedOut: the service cannot be reached.

    """
    found: set[Ability] = set()
    for ability, call in tries.items():
        try:
            await call()
        except (NotAllowed, Unsupported):
            continue
        except (BadInput, NotFound, PaymentFailed):
            pass
        found.add(ability)
    return found


def check_hex32(name: str, value: str) -> None:
    """Raises BadInput unless it is 64 lowercase hex digits. The error does not show it."""
    if _HEX32.fullmatch(value) is None:
        raise BadInput(name, "not 64 lowercase hex digits")


def member(row: object, name: str) -> Any:
    """A member of a service's JSON object. Raises LinkLost: it is no object, or lacks the member."""
    if not isinstance(row, dict) or row.get(name) is None:
        raise LinkLost("wallet", f"an answer of its has no {name}")
    return row[name]


def whole(row: object, name: str, missing: int | None = None) -> int:
    """A whole number from 0 on, also in decimal digits, as gRPC writes it. Raises LinkLost: it is none."""
    if missing is not None and isinstance(row, dict) and row.get(name) is None:
        return missing
    value = member(row, name)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS:
        value = int(value)
    if type(value) is not int or value < 0:
        raise LinkLost("wallet", f"its {name} is no whole number")
    return value


def text(row: object, name: str) -> str:
    """Raises LinkLost: it is no text."""
    value = member(row, name)
    if not isinstance(value, str):
        raise LinkLost("wallet", f"its {name} is no text")
    return value


def hex32(row: object, name: str) -> str:
    """32 bytes in lowercase hex. Raises LinkLost: it is something else."""
    value = text(row, name).lower()
    if _HEX32.fullmatch(value) is None:
        raise LinkLost("wallet", f"its {name} is not 64 hex digits")
    return value


def node_key(row: object, name: str) -> str:
    """A node's compressed public key in lowercase hex. Raises LinkLost: it is something else."""
    value = text(row, name).lower()
    if _KEY.fullmatch(value) is None:
        raise LinkLost("wallet", f"its {name} is no node's key")
    return value


def network(name: str) -> str:
    """A network as bolt11 names it. Raises Unsupported: nodewire knows none of this name."""
    found = NETWORKS.get(name.lower())
    if found is None:
        raise Unsupported("network", f"the wallet is of {name[:40]!r}")
    return found


def rows(value: object) -> list[dict[str, Any]]:
    """A list of objects. Raises LinkLost: it is something else."""
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise LinkLost("wallet", "a list of its is none")
    return value


def _too_large() -> LinkLost:
    return LinkLost("wallet", f"its answer is over {MAX_ANSWER_BYTES} bytes")
