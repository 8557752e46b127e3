"""What peers write must not command a terminal, nor break the command that prints it."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from nodewire.cli import output
from nodewire.cli.buy import job_view
from nodewire.errors import NotAllowed

EVIL = "a\x1b]52;c;cm0gLXJmIH4=\x07b\x9b2Jc\rd\u202ee[/foo]\n\tf"


@pytest.fixture
def screen(monkeypatch) -> io.StringIO:
    text = io.StringIO()
    monkeypatch.setattr(output, "notes", Console(file=text, highlight=False, width=500))
    return text


def test_an_error_from_a_peer_neither_commands_the_terminal_nor_breaks_the_markup(screen):
    with pytest.raises(SystemExit):
        output.fail(NotAllowed("lnurl", EVIL))
    printed = screen.getvalue()
    assert "[/foo]" in printed and "\\x1b]52" in printed
    assert not set(printed) & set("\x1b\x07\x9b\r\u202e")


def test_log_lines_are_plain():
    record = logging.LogRecord("n", logging.INFO, "", 1, "refused: %s", (EVIL,), None)
    assert "\x1b" not in output.PlainFormatter("%(message)s").format(record)


def test_generated_text_is_plain_on_a_terminal_and_itself_in_a_pipe(screen, monkeypatch):
    for is_a_terminal in (False, True):
        stdout = io.StringIO()
        stdout.isatty = lambda it=is_a_terminal: it  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stdout", stdout)
        monkeypatch.setattr(job_view, "notes", output.notes)
        text = job_view.GrowingText("prompt [/foo]")
        text.add("ein Satz,\n\tKätzchen 🐈")
        text.add(EVIL)
        printed = stdout.getvalue()
        assert printed.startswith("ein Satz,\n\tKätzchen 🐈")
        assert ("\x1b" in printed) is not is_a_terminal
