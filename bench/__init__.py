"""Measurements: `python -m bench.ROOM.NAME [--json] [--quick] [--seed N]` prints one JSON document.

A bench is found without its room, too: `python -m bench.single` is `python -m bench.decode.single`.
"""

from pathlib import Path

ROOMS = ("decode", "market", "model", "network", "sim", "tasks", "training", "verification", "fuzz", "hostile")
__path__ += [str(Path(__file__).parent / room) for room in ROOMS]
