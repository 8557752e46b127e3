"""The table that the demo ends with, and why its tokens come as fast as they do: all of it from the report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from rich.table import Table
from screen import sats

NEXT = (
    "All processes have ended. Next: `make demo ARGS=--stay` leaves the market up and says how to talk with the model;"
    " README.md says how to buy, to sell, and to bring a model of your own."
)


def table(report: Mapping) -> Table:
    """What matters, of the machines on the market and of one that has the whole model."""
    made = Table("", "machines on the market", "one machine", box=None, header_style="bold")
    for row in rows(report):
        made.add_row(*row)
    return made


def rows(report: Mapping) -> Iterator[tuple[str, str, str]]:
    whole, most = report["weights_bytes"], report["most_held_bytes"]
    part = f"nobody: {report['most_held_percent']:.0f} % at most, {most / 1e6:.0f} of {whole / 1e6:.0f} MB"
    yield "holds the whole model", part, f"yes: {whole / 1e6:.0f} MB"
    memory = (report["machine_memory_bytes"], report["single_process_memory_bytes"])
    yield "memory of a machine, libraries included", *(f"{one / 1e6:.0f} MB" for one in memory)
    same = report["tokens_identical_after_failover"]
    yield "the answer", f"{'the same' if same else 'ANOTHER'}, {report['tokens']} tokens", f"{report['tokens']} tokens"
    yield "its machine dies", f"goes on within {report['failover_ms'] / 1000:.1f} s", "nothing more comes"
    lost = sum(one["amount_msat"] for one in report["slashed"])
    yield "a machine cheats", f"convicted, loses {sats(lost)}" if lost else "NOT CONVICTED", "does not arise"
    yield "paid for answer and vectors", f"{sats(report['customer_spent_msat'])} of play money", "its own power"
    cost = report["msat_per_token"]
    yield "a token cost", f"{cost:.2f} msat, a million {cost * 1000:.0f} sat", "its own power"
    yield "tokens a second", f"{report['tokens_per_s']:.1f}", f"{report['single_process_tokens_per_s']:.1f}"


def speed(report: Mapping, processes: int) -> Iterator[str]:
    """Why so many tokens a second: a token's way, and what shared this machine."""
    pieces = len(report["generation_providers"])
    token_ms = 1000 / report["tokens_per_s"] if report["tokens_per_s"] else 0.0
    hops_ms = pieces * report["hop_ms_p50"]
    alone_ms = 1000 / report["single_process_tokens_per_s"] if report["single_process_tokens_per_s"] else 0.0
    yield (
        f"A token took {token_ms:.0f} ms. It goes through {pieces} machines, one after the other, and {hops_ms:.0f} ms"
        f" of that were ways between them; the rest is computing and waiting for a core."
        f" One process took {alone_ms:.0f} ms."
    )
    yield (
        f"Here {processes} daemons and their workers share {os.cpu_count()} cores with all else that runs"
        f" ({report['load']:.1f} processes wanted a core at a time);"
        " real strangers have cores of their own, and longer ways."
    )
