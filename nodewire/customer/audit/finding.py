"""One line of an audit: what was looked at, and whether it is as it must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "wrong"]
"""`missing`: nothing contradicts, but what would show it is not to be had (yet)."""


@dataclass(frozen=True, slots=True)
class Line:
    """`step`: certificate, commitment, draw, verdict, share, bond, payment, receipt, ledger, record."""

    step: str
    what: str
    state: State
    reason: str = ""
    again_s: int = 0
    """In how many seconds it is worth to look again at what is not there yet."""


def ok(step: str, what: str, reason: str = "") -> Line:
    return Line(step, what, "ok", reason)


def missing_line(step: str, what: str, reason: str) -> Line:
    return Line(step, what, "missing", reason)


def not_yet(step: str, what: str, reason: str, again_s: int) -> Line:
    """`reason` says what may still come, and until when."""
    return Line(step, what, "missing", f"not yet: {reason}, look again in about {again_s} s", again_s)


def wrong(step: str, what: str, reason: str) -> Line:
    return Line(step, what, "wrong", reason)
