"""Addresses as they are written."""

import pytest

from nodewire.errors import BadInput
from nodewire.wire.transport import parse_address


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("node.example:65535", "node.example", 65_535),
        ("[::1]:00080", "::1", 80),
    ],
)
def test_a_host_and_a_port(address, host, port):
    assert parse_address(address) == (host, port)


@pytest.mark.parametrize("port", ["", "0", "00000", "65536", "99999", "0000801", "6553599999", "-1", "٣", "8o"])
def test_a_port_is_from_1_to_65535(port):
    with pytest.raises(BadInput, match="address"):
        parse_address(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["", "80", ":80", "::1:80", "127.0.0.1"])
def test_without_a_host_it_is_none(address):
    with pytest.raises(BadInput, match="address"):
        parse_address(address)
