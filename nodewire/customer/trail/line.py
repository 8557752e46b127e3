"""One line of an audit: what was looked at, and whether it is as it must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "wrong"]
"""`missing`: nothing contradicts, but what would show it is not to be had (yet)."""


@dataclass(frozen=True, slots=True)
class Line:
    """`step`: takeover, certificate, commitment, draw, verdict, share, bond, payment, receipt, ledger, record."""

    step: str
    what: str
    state: State
    reason: str = ""


def ok(step: str, what: str, reason: str = "") -> Line:
    return Line(step, what, "ok", reason)


def missing(step: str, what: str, reason: str) -> Line:
    return Line(step, what, "missing", reason)


def wrong(step: str, what: str, reason: str) -> Line:
    return Line(step, what, "wrong", reason)
