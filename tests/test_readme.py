"""README's tours run as they stand: each block in its order, by a shell, in one folder, on a running market.

The language of a fence is `bash` or `python`, and the words behind it say what the block is. The first is its tour, or
`every` for what each new terminal begins with. `stays` follows if it goes on running in a terminal of its own.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from nodewire.nostr.keys import Keys

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FENCE = re.compile(r"^```(\w+)(?: ([\w ]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOURS = ("customer", "gateway", "operator", "developer", "committee")
EVERY = "every"
READY = re.compile(r"^\w+ ready  ")
PLACEHOLDER = re.compile(r"<[a-z_ -]+>|\b(?:ADDRESS|REQUEST|MODEL|FILE|FOLDER|DIR)\b|\.\.\.|…|path/to")


@dataclass(frozen=True)
class Block:
    language: str
    tour: str
    stays: bool
    text: str


def blocks() -> list[Block]:
    """All blocks of README that are of a tour, in their order."""
    found = []
    for language, words, text in FENCE.findall(README):
        if language in ("bash", "python"):
            tour, *more = words.split() or [""]
            found.append(Block(language, tour, more == ["stays"], text))
    return found


class Terminal:
    """A block in a shell of its own, and whether it has said that it is ready."""

    def __init__(self, begin: str, text: str, folder: Path, environment: dict[str, str]) -> None:
        self._text, self._said = text, list[str]()
        self._told = threading.Event()
        self.is_ready = False
        self._process = subprocess.Popen(
            ["bash", "-eo", "pipefail", "-c", begin + text],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._said.append(line)
            if READY.match(line):
                self.is_ready = True
                self._told.set()
        self._told.set()  # it has ended

    def wait_until_ready(self) -> None:
        self._told.wait()
        assert self.is_ready, "a block that stays ended before it was ready"

    def wait_until_done(self) -> None:
        self._reader.join()
        code = self._process.wait()
        assert code == 0, f"README's block ended with {code}"

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join()
        print(f"$ {self._text}\n{''.join(self._said)}")  # pytest shows it where a test fails


@pytest.fixture(scope="module")
def checkout(market, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder like a checkout beside which `make demo ARGS=--stay` runs: what the demo leaves in `.demo` is written by
    the demo's own functions, and its models' names stand for those of the running market."""
    folder: Path = tmp_path_factory.mktemp("readme") / "nodewire"
    (folder / ".demo").mkdir(parents=True)
    (folder.parent / "home").mkdir()
    for name in ("demo", "docs", "kinds"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    shutil.copy(ROOT / ".gitignore", folder)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    common = {"relay": market.relay, "blossom": market.blossom, "simnet": market.simnet, "committee": market.committee}
    models = {"smollm2": market.decoder["address"], "minilm": market.encoder["address"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "demo"))
        from market import Market, customer_config, write_addresses

        write_addresses(folder / ".demo", common, models)
        config = asyncio.run(customer_config(Market(folder / ".demo"), common))
    for name, address in models.items():
        market.command("models", "pin", name, address, "--config", str(config))
    yield folder
    # Providers that tours started are in no plan any more, or the market's other tests would meet them.
    own = {Keys.from_file(file).public for file in folder.glob("mine/**/key.nsec")}
    asyncio.run(market.until(lambda snapshot: not own & {node.pubkey for node in snapshot.nodes}))


def untracked(folder: Path) -> str:
    return subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def run(tags: set[str], folder: Path) -> None:
    """The blocks of these tags, from the first to the last; those that stay are stopped at the end."""
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "OMP_NUM_THREADS") if name in os.environ}
    environment["HOME"] = str(folder.parent / "home")
    begin = "".join(block.text for block in blocks() if block.tour == EVERY)
    before = untracked(folder)
    with ExitStack() as stack:
        for block in (one for one in blocks() if one.tour in tags):
            text = block.text if block.language == "bash" else f"python - <<'PYTHON'\n{block.text}PYTHON\n"
            terminal = Terminal(begin, text, folder, environment)
            stack.callback(terminal.stop)
            if block.stays:
                terminal.wait_until_ready()
            else:
                terminal.wait_until_done()
    assert untracked(folder) == before, "a tour leaves files that git sees"


def test_every_block_is_of_a_tour_and_has_no_placeholder():
    tours = [block.tour for block in blocks()]
    assert set(tours) == {EVERY, "openai", *TOURS}
    assert tours.index(EVERY) == 0 and tours.count(EVERY) == 1
    for block in blocks():
        assert not PLACEHOLDER.search(block.text), block.text
    assert not [language for language, *_ in FENCE.findall(README) if language not in ("bash", "python", "sh")]


@pytest.mark.parametrize(
    "tour",
    [
        pytest.param(tour, marks=pytest.mark.skipif(tour == "gateway" and not shutil.which("curl"), reason="no curl"))
        for tour in TOURS
    ],
)
def test_a_tours_blocks_do_what_they_say(checkout, tour):
    run({tour}, checkout)


@pytest.mark.skipif(find_spec("openai") is None, reason="OpenAI's client is part of the extra `interop`")
def test_openais_client_asks_the_gateway(checkout):
    run({"gateway", "openai"}, checkout)
