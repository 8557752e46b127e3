"""Ctrl-C while a terminal waits for the market: it ends what can be ended, and is an interrupt and no fault."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from nodewire.cli.buy.conversation import LoopThread


@pytest.fixture
def beside():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    running = LoopThread()
    yield running
    running.close()
    signal.signal(signal.SIGINT, before)


def pressed(main: int) -> None:
    signal.pthread_kill(main, signal.SIGINT)


def test_what_is_ended_by_it_is_interrupted(beside):
    ended = []

    async def opening() -> None:
        threading.Thread(target=pressed, args=(threading.main_thread().ident,)).start()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        beside.run(opening())
    assert ended


def test_what_has_to_be_finished_is_waited_for_and_said(beside):
    async def answering() -> str:
        threading.Thread(target=pressed, args=(threading.main_thread().ident,)).start()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return "paid"

    told = []
    assert beside.run(answering(), interrupted=lambda: told.append("breaking off")) == "paid"
    assert told == ["breaking off"]
