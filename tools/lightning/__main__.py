"""`python -m tools.lightning up|down|status|pin [FOLDER]`: three real Lightning nodes, in FOLDER (build/lightning)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tools.lightning.network import Network
from tools.lightning.packages import SetupError, pin, say
from tools.lightning.rpc import RpcError


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.lightning", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "status", "pin"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/lightning"))
    asked = parser.parse_args()
    network = Network(asked.folder)
    try:
        if asked.command == "up":
            began = time.monotonic()
            network.up()
            say(f"up after {time.monotonic() - began:.0f} s: {network.state_file}")
        elif asked.command == "down":
            network.down()
        elif asked.command == "pin":
            pin()
        else:
            print(json.dumps(network.running()))
    except (SetupError, RpcError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
