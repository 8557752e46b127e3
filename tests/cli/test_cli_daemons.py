"""What every daemon does before it starts."""

import resource
import socket

import pytest

from nodewire.cli import daemons
from nodewire.cli.splice import splice
from nodewire.errors import BadConfig, BadInput


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
