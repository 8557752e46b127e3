"""What commands print: results on stdout, what is said beside them and errors on stderr, JSON documents on request."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Annotated, Any, NoReturn

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from nodewire.errors import NodewireError
from nodewire.protocol.market.token_price import per_million_msat

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
console = Console(highlight=False)
"""For results: standard output."""
notes = Console(stderr=True, highlight=False)
"""For progress, errors, and what is said beside a result: standard error."""
CUSTOMERS, OPERATORS, DEVELOPERS = "Customers", "Operators", "Developers and committees"
"""The headings of `nodewire --help`, in their order."""
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of text.")]

_DOCTOR = "`nodewire doctor --config FILE` tries everything it names."
_ADVICE = {
    "no-quorum": "Is the committee running, and are these its relays? `nodewire doctor --config FILE` looks.",
    "no-provider": "Raise the price cap, widen the terms, or wait: `nodewire models` shows who serves what.",
    "bad-config": "See docs/reference/configuration.md for every field.",
    "bad-recipe": "See docs/reference/recipes.md for every field.",
    "payment-failed": "`nodewire wallet balance --config FILE` shows what the wallet holds.",
    "link-lost": f"Is it running, and is its address right? {_DOCTOR}",
    "over-budget": "Raise --budget, or max_chunk_msat and max_total_msat in the configuration.",
    "node-failed": "Is the disk full? `df` tells; `nodewire doctor --config FILE` looks at what grows there.",
    "worker-failed": "The worker's log on stderr says more; more memory may help ([worker] memory).",
}
_MODEL = re.compile(r"38840:[0-9a-f]{64}:")
_AIOHTTP = re.compile(r"Cannot connect to host (\S+) ssl:\S+ \[(.*)\]")
"""aiohttp says "ssl:default" of plain http, too."""
_AMOUNT = re.compile(r"(?<![\w.,])(\d+) msat\b")


class _End:
    """Whether a command has said itself what it ended by, so that a Ctrl-C after it adds no line."""

    is_told = False


end = _End()


def fail(error: NodewireError, *, as_json: bool = False) -> NoReturn:
    """Print the error and exit with 1."""
    advice = _advice(error)
    end.is_told = True
    if as_json:
        print_json({"error": {**error.as_dict(), "reason": _reachable(error.reason), "advice": advice}})
    else:
        notes.print(f"[bold red]{error.code}[/]  {one_line(in_words(error))}", soft_wrap=True)
        if advice:
            notes.print(f"[dim]{escape(advice)}[/]", soft_wrap=True)
    sys.exit(1)


def _advice(error: NodewireError) -> str:
    if error.code == "not-found" and _MODEL.match(error.field):
        return "`nodewire models --config FILE` lists what is on the market."
    if error.code == "timed-out" and error.field.startswith("relay"):
        return f"Is it running, and is its address right? {_DOCTOR}"
    if error.code == "not-found" and error.field == "manifest" and "another version" in error.reason:
        return (
            "If a name is pinned to that version, `nodewire models pin NAME ADDRESS --replace` takes what is there now."
        )
    if error.code == "not-found" and error.field == "model":
        return "`nodewire models --config FILE` lists what is on the market; any model can be named by its address."
    if error.code == "no-provider" and error.field == "nodes":
        return "`nodewire swarm check FILE` asks every node; `nodewire provider --swarm FILE` starts one, there."
    if error.code == "no-provider" and error.field == "model":
        return "A provider serves it by a [[serve]] that has its address and tasks: docs/reference/configuration.md."
    if error.code == "no-provider" and error.field.startswith(("trainers", "shard", "round")):
        return "`nodewire trainers --config FILE` shows who trains what; what is done already stays done."
    if error.code == "bad-config" and (error.reason.startswith("cannot be read") or not _is_setting(error.field)):
        return ""
    if error.code == "over-budget" and error.field in ("budget", "--budget"):
        return "Raise --budget, or buy fewer rounds or shards: `--quote` says what they cost. What is done stays done."
    return _ADVICE.get(error.code, "")


def _is_setting(field: str) -> bool:
    """Whether an error is about a role's file, or about a field of one: "provider.toml, line 3", "worker.sandbox"."""
    from nodewire.config import CustomerConfig, OracleConfig, ProviderConfig

    name = field.partition(".")[0].strip("[]")
    roles = (CustomerConfig, OracleConfig, ProviderConfig)
    return ".toml" in field or any(name in role.model_fields for role in roles)


def in_words(error: NodewireError) -> str:
    """The error for people: amounts in sat, and no library's jargon."""
    return _AMOUNT.sub(lambda found: sats(int(found[1])), _reachable(str(error)))


def _reachable(reason: str) -> str:
    return _AIOHTTP.sub(r"cannot connect to \1 (\2)", reason)


def plain(text: str) -> str:
    """`text` without what a terminal would obey: control characters but line feed and tab become visible.

    Peers choose much of what is printed: tokens, reasons, names. An escape sequence may rewrite what stands above it,
    or what the clipboard holds.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def one_line(text: str) -> str:
    """What a peer wrote, for one line of rich's markup."""
    return escape(plain(text.replace("\n", " ")))


class PlainFormatter(logging.Formatter):
    """Log lines quote peers, too."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def print_json(document: Any) -> None:
    """One JSON document and a newline on stdout, flushed, so that a script can read it from a running daemon."""
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()


@contextmanager
def steps(
    what: str, clock_s: Callable[[], float] = time.monotonic, *, at_once: bool = False
) -> Iterator[Callable[[str], None]]:
    """The work under way, on stderr, and its progress.

    It is said at most once a second, after the first unless `at_once`, since each step may take long. On a terminal it
    is one line that changes and goes. Steps are rich's markup.
    """
    said_s = -inf if at_once else clock_s()
    with notes.status(what) as status:

        def tell(step: str) -> None:
            nonlocal said_s
            if clock_s() - said_s < 1 and not (at_once and notes.is_terminal):
                return
            said_s = clock_s()
            status.update(f"{what}: {step}")
            if not notes.is_terminal:
                notes.print(f"{what}: {step}")

        yield tell


def counted(count: int, what: str) -> str:
    """So many of something whose plural ends in s: "1 zap", "2 zaps"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def sats(msat: int) -> str:
    """Millisats for people: "12.345 sat"."""
    return f"{msat / 1000:,.3f} sat"


def per_million(price_msat: int, chunk: int) -> str:
    """The price of a chunk of so many tokens, as people quote it: "46.891 sat" for a million of them."""
    return sats(int(per_million_msat(price_msat, chunk)))


def price_of_work(price_msat: int, mode: str, chunk: int) -> str:
    """The price of work, with its unit: for a million tokens where a model makes text, else for a call."""
    if mode == "generate":
        return f"{per_million(price_msat, chunk)} a million tokens"
    return f"{sats(price_msat)} a call"
