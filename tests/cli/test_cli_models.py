"""What `nodewire models` says of a task that providers have measured."""

from nodewire.cli.models import _measured


def test_of_a_task_the_most_memory_and_the_least_time_are_shown():
    quick = {"peak_bytes": 31_000_000, "us": 900, "positions": 4, "us_together": 3_000}
    wide = {"peak_bytes": 33_500_000, "us": 1_800, "positions": 64, "us_together": 9_600}
    assert _measured([quick, wide]) == ("33.5 MB", "0.9 ms", "0.15 ms of 64")
    assert _measured([]) == ("-", "-", "-")
