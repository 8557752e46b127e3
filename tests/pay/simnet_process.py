"""The simulated Lightning network's process, for tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson


class run_simnet:  # noqa: N801 - a block is opened with it, as with a function
    """The real process, started as an operator starts it; ends with the block."""

    def __init__(self, db: Path, *options: str, base_fee_msat: int = 0, fee_ppm: int = 0) -> None:
        self._command = [sys.executable, "-m", "simnet", "--port", "0", "--db", str(db)]
        self._command += ["--fee-ppm", str(fee_ppm), "--base-fee-msat", str(base_fee_msat)]
        self._command += ["--faucet", "--json", *options]

    def __enter__(self) -> str:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        said = orjson.loads(self.process.stdout.readline())
        assert "error" not in said, said
        return str(said["url"])

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
