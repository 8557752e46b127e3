"""What every daemon does before it starts."""

import asyncio
import logging
import resource
import signal
import socket
import subprocess
import sys
import tomllib
from contextlib import AsyncExitStack

import pytest

from nodewire.cli.daemon import daemons
from nodewire.cli.daemon.relay import relay
from nodewire.cli.daemon.splice import splice
from nodewire.config import WireConfig
from nodewire.errors import BadConfig, BadInput
from nodewire.net.http_server import listening_socket
from nodewire.nostr.keys import Keys
from nodewire.protocol.encoding.address import SpliceAddress
from nodewire.provider.market.listener import open_wire
from nodewire.wire.nat import splice_client as ends
from nodewire.wire.node import Node
from simnet.__main__ import simnet


@pytest.mark.parametrize("soft", [256, 1_024])
def test_a_daemon_may_open_as_many_files_as_the_system_allows(soft):
    """Links alone were more than the usual limit: whoever opened a thousand had it fail to open its own books."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= soft:
        pytest.skip("this system allows no more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        daemons.allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("listen", "0.0.0.0"),
        ("listen", "127.0.0.1:80000"),
        ("announce", ["example.org"]),
        ("announce", ["example.org:99999"]),
        ("announce", ["a b:7790"]),
        ("name", "Two Words"),
    ],
)
def test_a_splice_names_the_option_that_is_wrong(tmp_path, option, value):
    good = {"listen": "127.0.0.1:0", "announce": ["example.org:7790"], "name": "splice"}
    with pytest.raises((BadConfig, BadInput), match=f"--{option}"):
        splice(tmp_path / "key.nsec", ["ws://127.0.0.1:9"], **{**good, option: value})


def test_a_splice_whose_port_is_taken_says_so(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadConfig, match=f"cannot listen at {address}"):
            splice(tmp_path / "key.nsec", ["ws://127.0.0.1:9"], listen=address)


@pytest.mark.parametrize("daemon", ["relay", "simnet", "guests", "wire"])
def test_a_port_that_is_taken_is_told_with_the_setting_that_names_it(tmp_path, daemon):
    def start(port):
        address = f"127.0.0.1:{port}"
        if daemon == "relay":
            relay(port=port, db=tmp_path / "relay.db", blobs=tmp_path / "blobs")
        elif daemon == "simnet":
            simnet("127.0.0.1", port, tmp_path / "simnet.db")
        elif daemon == "guests":
            listening_socket("--port", address)
        else:
            wire = WireConfig(listen=address)
            asyncio.run(open_wire(AsyncExitStack(), wire, Node(Keys.generate()), Keys.generate(), None))

    option = "wire.listen" if daemon == "wire" else "--port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"{option}: cannot listen on 127.0.0.1:{port} .address already in use.: choose another"
        with pytest.raises(BadConfig, match=said):
            start(port)


async def _carry(address: SpliceAddress, nbytes: int) -> None:
    """Have two ends meet at a splice, and one say so many bytes to the other."""
    one, other = [await ends.enter(address, "ab" * 32, Keys.generate(), allow_private=True) for _ in range(2)]
    await asyncio.gather(one.say_go(), other.hear_go())
    loop = asyncio.get_running_loop()
    sending = asyncio.create_task(loop.sock_sendall(one.connection, bytes(nbytes)))
    await ends.read(other.connection, nbytes)
    await sending
    one.close()
    other.close()


def test_a_splice_says_what_others_write_into_their_files_and_at_its_end_what_it_carried(tmp_path):
    command = ["--key", str(tmp_path / "key"), "--relay", "ws://127.0.0.1:9", "--listen", "127.0.0.1:0"]
    running = subprocess.Popen(
        [sys.executable, "-m", "nodewire.cli", "splice", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = [running.stdout.readline() for _ in range(4)]
        (address,) = tomllib.loads("".join(said[2:]))["wire"]["splices"]
        assert said[0].startswith("splice ready  npub1")
        asyncio.run(_carry(SpliceAddress.parse(address), 200_000))
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 0
    assert "stopped: 1 link joined, 0.2 MB carried, 0 nodes dialled back" in err


@pytest.mark.parametrize(("said", "level"), [(None, logging.INFO), ("debug", logging.DEBUG), ("ERROR", logging.ERROR)])
def test_the_environment_says_how_much_is_logged(monkeypatch, said, level):
    if said is None:
        monkeypatch.delenv("NODEWIRE_LOG", raising=False)
    else:
        monkeypatch.setenv("NODEWIRE_LOG", said)
    assert daemons._log_level() == level
    monkeypatch.setenv("NODEWIRE_LOG", "everything")
    with pytest.raises(BadConfig, match="'everything' is none of"):
        daemons._log_level()
