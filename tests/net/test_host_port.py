"""Addresses as they are written."""

import pytest

from nodewire.errors import BadConfig, BadInput
from nodewire.net import host_port
from nodewire.protocol.encoding.address import ip_port


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("node.example:65535", "node.example", 65_535),
        ("[::1]:00080", "::1", 80),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_a_host_and_a_port(address, host, port):
    assert host_port.parse(address) == (host, port)


@pytest.mark.parametrize("port", ["", "0", "00000", "65536", "99999", "0000801", "6553599999", "-1", "٣", "8o"])
def test_a_port_is_from_1_to_65535(port):
    with pytest.raises(BadInput, match="address"):
        host_port.parse(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["", "80", ":80", "[]:80", "::1:80", "127.0.0.1", "[::1]"])
def test_without_a_host_and_a_port_it_is_none(address):
    with pytest.raises(BadInput, match="address"):
        host_port.parse(address)


def test_port_0_is_one_where_a_free_port_may_be_taken():
    assert host_port.parse("[::]:0", least_port=0) == ("::", 0)


def test_the_error_is_the_callers_and_names_its_field_and_the_range():
    with pytest.raises(BadConfig, match=r"--listen: 'here' is not host:port .*from 0 to 65535"):
        host_port.parse("here", "--listen", least_port=0, error=BadConfig)


@pytest.mark.parametrize("address", ["127.0.0.1:80", "node.example:80", "[::1]:80"])
def test_what_is_written_is_read_again(address):
    assert host_port.written(*host_port.parse(address)) == address


def test_an_ip_address_and_a_port():
    assert [str(ip_port(one)[0]) for one in ("127.0.0.1:80", "[::1]:80")] == ["127.0.0.1", "::1"]


@pytest.mark.parametrize("address", ["node.example:80", "::1:80", "[127.0.0.1]:80", "[fe80::1%eth0]:80", "127.0.0.1"])
def test_a_name_or_a_zone_is_no_ip_address(address):
    with pytest.raises(ValueError, match="is not an IP address with a port"):
        ip_port(address)
