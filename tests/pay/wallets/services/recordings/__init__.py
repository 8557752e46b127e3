"""What the documented APIs of wallets' services ask for and answer: names and types by call, and their examples.

The stand-ins of this folder answer from it, and are asked by it: `check` fails on a name that the documentation has
not, and on a value of another type.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

_FITS = {
    "string": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "whole": lambda value: type(value) is int and value >= 0,
    "int": lambda value: type(value) is int,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "msat": lambda value: (type(value) is int and value >= 0) or re.fullmatch(r"\d+msat|any", str(value)) is not None,
    "int64": lambda value: isinstance(value, str) and re.fullmatch(r"-?\d+", value) is not None,
    "digits": lambda value: isinstance(value, str) and value.isdecimal(),
    "hex": lambda value: isinstance(value, str) and re.fullmatch(r"([0-9a-f]{2})*", value) is not None,
    "hex32": lambda value: isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None,
    "key": lambda value: isinstance(value, str) and re.fullmatch(r"0[23][0-9a-f]{64}", value) is not None,
    "bytes": lambda value: base64.b64encode(base64.b64decode(value, altchars=b"-_")) and True,
    "object": lambda value: isinstance(value, dict),
    "any": lambda value: True,
}


class Recording:
    """The API of one service. A call is "POST /v1/invoices", with the names of its parts in braces."""

    def __init__(self, name: str) -> None:
        read = json.loads((Path(__file__).parent / f"{name}.json").read_text())
        self.calls: dict[str, Any] = read["calls"]
        self.types: dict[str, Any] = read["types"]
        self.examples: list[dict[str, Any]] = read.get("examples", [])

    def check(self, call: str, part: str, value: Any) -> Any:
        """`value`, if it fits what the documentation has as this part of the call: request, query, answer, stream."""
        self._check(f"{call} {part}", self.calls[call][part], value)
        return value

    def _check(self, where: str, kind: Any, value: Any) -> None:
        if isinstance(kind, list):
            assert isinstance(value, list), f"{where}: {value!r} is no list"
            for one in value:
                self._check(where, kind[0], one)
        elif isinstance(kind, dict) and "enum" in kind:
            assert value in kind["enum"], f"{where}: {value!r} is not one of {kind['enum']}"
        elif isinstance(kind, dict):
            assert isinstance(value, dict), f"{where}: {value!r} is no object"
            for name, one in value.items():
                assert name in kind, f"{where}: the documentation has no {name}"
                self._check(f"{where} {name}", kind[name], one)
        elif kind in self.types:
            self._check(where, self.types[kind], value)
        else:
            assert _FITS[kind](value), f"{where}: {value!r} is no {kind}"
