"""`nodewire chat` on this market, for a script and in a terminal: its answers are the model's, Ctrl-C ends the bill."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from nodewire.chat.renderer import Renderer
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params
from nodewire.protocol.model.chat_template import ChatTemplate
from tests.market.market_process import NODEWIRE
from tests.market.tiny_models import TEMPLATE
from tests.patience import readable

WAIT_S = 60.0


@pytest.fixture
async def alone(market):
    """What a single process answers to messages."""
    model, renderer = LocalDecoder(market.decoder_folder), Renderer()

    async def answer(messages: list[dict[str, str]], max_tokens: int) -> str:
        prompt = await renderer.render(ChatTemplate(template=TEMPLATE), messages)
        steps = model.steps(prompt, parse_params({"max_tokens": max_tokens}, model.positions))
        return "".join(text for _, text in steps)

    yield answer
    await renderer.close()


async def command(market, name: str, max_tokens: int, *options: str) -> list[str]:
    config = market.config_of(name)
    if not config.exists():
        await market.customer_config(name)
    fixed = ["--config", str(config), "--max-tokens", str(max_tokens), "--temperature", "0"]
    return [*NODEWIRE, "chat", market.decoder["address"], *fixed, *options]


async def test_a_script_talks_line_by_line_and_what_was_said_goes_with_it(market, alone, tmp_path):
    saved = tmp_path / "said.json"
    lines = f"hello\n/ring\n\nthe cat\n/save {saved}\n/clear\nhello\n/nothing\n/quit\n"
    talking = await command(market, "talker", 12, "--system", "be brief", "--json")
    done = subprocess.run(talking, input=lines.encode(), capture_output=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr.decode()
    said = [json.loads(line) for line in done.stdout.splitlines()]
    first, second, third = (one["answer"] for one in said if "answer" in one)
    system, hello = {"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}
    assert first["text"] == third["text"] == await alone([system, hello], 12)
    history = [system, hello, {"role": "assistant", "content": first["text"]}, {"role": "user", "content": "the cat"}]
    assert second["text"] == await alone(history, 12)
    assert json.loads(saved.read_bytes()) == [*history, {"role": "assistant", "content": second["text"]}]
    assert "".join(one.get("piece", "") for one in said) == first["text"] + second["text"] + third["text"]
    (ring,) = (one["ring"] for one in said if "ring" in one)
    assert [task["task"] for task in ring] == ["driver", "stage.0", "stage.1", "stage.2"]
    assert all(task["price_msat"] > 0 and task["name"] for task in ring)
    (told,) = (one["note"] for one in said if "/nothing" in str(one.get("note")))
    assert "/help" in told
    spent_msat = sum(one["cost_msat"] for one in (first, second, third))
    assert said[-2]["spent_msat"] == spent_msat
    assert 100_000_000 - (await market.balances_msat("talker"))["talker"] == spent_msat


async def test_an_interrupted_answer_is_paid_as_far_as_it_came_and_the_talk_goes_on(market):
    talking = await command(market, "hasty", 330, "--json")
    with subprocess.Popen(talking, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin and process.stdout
        process.stdin.write(b"hello\n")
        interrupted, answers = False, []
        while len(answers) < 2:
            said = json.loads(process.stdout.readline())
            if "piece" in said and not interrupted:
                interrupted = True
                process.send_signal(signal.SIGINT)
            if "answer" in said:
                answers.append(said["answer"])
                process.stdin.write(b"/clear\nhello\n")
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
    cut, whole = answers
    assert (cut["reason"], whole["reason"]) == ("stopped", "length")
    assert whole["text"].startswith(cut["text"]) and cut["completion_tokens"] < 330
    assert 0 < cut["cost_msat"] <= whole["cost_msat"] * 4 / 6  # what is worked on is at most two chunks ahead


async def test_in_a_terminal_ctrl_c_breaks_off_an_answer_and_not_the_talk(market):
    talking = await command(market, "typist", 330)
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm", COLUMNS="100")
        os.execv(sys.executable, talking)
    screen = _Screen(terminal)
    screen.until("› ")
    screen.type("hello\n")
    screen.until("tokens/s")
    screen.type("\x03")
    assert "broken off" in screen.until(" in all")
    screen.until("› ")
    screen.type("/ring\n")
    assert "stage.1" in screen.until("› ")
    screen.type("\x03")
    screen.until("/quit leaves", again="\x03")
    screen.until("› ")
    screen.type("\x04")
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


class _Screen:
    """What a terminal's process writes, and what is typed to it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._came = b""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def until(self, text: str, *, again: str = "") -> str:
        """What has been written since the last time, up to `text`.

        `again` is typed while nothing comes: input() shows its prompt a moment before it listens, and a signal in
        between waits for the next one.
        """
        end = time.monotonic() + WAIT_S
        while text.encode() not in self._came:
            assert time.monotonic() < end, self._came.decode()
            if readable(self._descriptor, 2):
                self._came += os.read(self._descriptor, 65_536)
            else:
                self.type(again)
        before, found, self._came = self._came.partition(text.encode())
        return (before + found).decode("utf-8", "replace")
