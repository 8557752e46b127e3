"""Run `nodewire` in this process with a cheat: `python -m tests.faults.run --cheat NAME -- provider --config FILE`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cheat", required=True)
    parser.add_argument("--tasks", default="", help="cheat in these tasks only, separated by commas")
    parser.add_argument("--after", type=int, default=0, help="honest up to this frame of a session")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and nodewire's arguments")
    options = parser.parse_args()
    os.environ["NODEWIRE_FAULTS_CHEAT"] = options.cheat
    os.environ["NODEWIRE_FAULTS_TASKS"] = options.tasks
    os.environ["NODEWIRE_FAULTS_AFTER"] = str(options.after)
    # Last on the path: of two kinds with one number the one that is found last counts.
    here = Path(__file__).parent
    sys.path += [str(here), str(here / "installed")]
    if options.cheat == "copied":
        from nodewire_faults.copies import copy_commitments

        copy_commitments()
    if options.cheat == "equivocating":
        from nodewire_faults.equivocation import send_otherwise

        send_otherwise([name for name in options.tasks.split(",") if name])
    if options.cheat == "forged":
        from nodewire_faults.forgery import forge_sketches

        forge_sketches([name for name in options.tasks.split(",") if name])
    if options.cheat == "uncommitted":
        from nodewire_faults.no_commitment import commit_to_nothing

        commit_to_nothing()
    if options.cheat == "wary":
        from nodewire_faults.wary import expect_no_payment

        expect_no_payment()
    sys.argv = ["nodewire", *(a for i, a in enumerate(options.command) if i or a != "--")]

    from nodewire.cli import main as nodewire

    nodewire()


if __name__ == "__main__":
    main()
