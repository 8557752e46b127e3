"""Addresses of nodes, and of splices at which they are met."""

import pytest

from nodewire.errors import BadInput
from nodewire.protocol.encoding.address import SpliceAddress, ip_port

KEY = "ab" * 32


def test_a_splices_address_is_written_as_it_was_read():
    text = f"splice:{KEY}@example.com:7000"
    assert SpliceAddress.parse(text) == SpliceAddress(KEY, "example.com:7000")
    assert str(SpliceAddress.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "example.com:7000",
        f"{KEY}@example.com:7000",
        "splice:abcd@example.com:7000",
        f"splice:{KEY.upper()}@a:1",
        f"splice:{KEY}@",
        f"splice:{KEY}",
    ],
)
def test_an_address_that_names_no_splice_is_refused(text):
    with pytest.raises(BadInput, match="is not splice:<public key>@host:port"):
        SpliceAddress.parse(text)


@pytest.mark.parametrize(("text", "port"), [("127.0.0.1:80", 80), ("[::1]:65535", 65_535)])
def test_an_ip_address_with_a_port_is_read(text, port):
    ip, found = ip_port(text)
    assert (ip.is_loopback, found) == (True, port)


@pytest.mark.parametrize(
    "text", ["localhost:80", "127.0.0.1", "[127.0.0.1]:80", "::1:80", "[fe80::1%eth0]:80", "[::1]:0x50"]
)
def test_a_name_or_half_an_address_is_no_ip_address_with_a_port(text):
    with pytest.raises(ValueError, match="is not an IP address with a port"):
        ip_port(text)
