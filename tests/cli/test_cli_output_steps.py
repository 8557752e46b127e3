"""What is under way is said on stderr, once it takes longer than a second, and at most once a second."""

import io

from rich.console import Console

from nodewire.cli import output


def shown(monkeypatch, seconds: list[float], **how: bool) -> list[str]:
    """The lines for steps at these times, where stderr is no terminal."""
    written = io.StringIO()
    monkeypatch.setattr(output, "notes", Console(file=written, width=80))
    now = 0.0
    with output.steps("placing 3 tasks", clock_s=lambda: now, **how) as tell:
        for second in seconds:
            now = second
            tell(f"part {second}")
    return written.getvalue().splitlines()


def test_steps_are_said_after_a_second_and_no_oftener(monkeypatch):
    assert shown(monkeypatch, [0.2, 0.9]) == []
    lines = shown(monkeypatch, [0.5, 1.1, 1.5, 2.0, 2.2, 9.0])
    assert lines == [f"placing 3 tasks: part {second}" for second in (1.1, 2.2, 9.0)]


def test_where_each_may_take_long_the_first_is_said_at_once(monkeypatch):
    lines = shown(monkeypatch, [0.0, 0.5, 1.1], at_once=True)
    assert lines == [f"placing 3 tasks: part {second}" for second in (0.0, 1.1)]
