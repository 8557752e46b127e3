"""Sizes as people write and read them: 3000000, 3MB, 512 MiB, 24GB."""

from __future__ import annotations

import re

_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_size(text: object) -> int:
    """Bytes from 3000000, "3MB", "512 MiB", "24GB".

    Raises:
        ValueError: it is none of these.

    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,3})?)\s*([kmg]?i?b?)\s*", str(text).lower())
    unit = match[2] if match else ""
    if match is None or (unit and unit not in _SIZES and unit + "b" not in _SIZES):
        raise ValueError(f"{text!r} is not a size such as 3MB or 24GiB")
    return int(float(match[1]) * _SIZES.get(unit, _SIZES.get(unit + "b", 1)))


def in_units(nbytes: int) -> str:
    """For people: "212 kB", "1.5 MB"."""
    return _in_units(nbytes, " ")


def at_least(nbytes: int) -> str:
    """No less than `nbytes`, in three digits, as `parse_size` takes it: "301MB"."""
    step: int = 10 ** max(len(str(nbytes)) - 3, 0)
    return _in_units(-(-nbytes // step) * step, "")


def _in_units(nbytes: int, between: str) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{float(f'{nbytes / size:.3g}'):g}{between}{unit}"
    return f"{nbytes}{between or ''}{'bytes' if between else 'B'}"
