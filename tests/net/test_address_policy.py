"""Which addresses a stranger's URL may lead to."""

from __future__ import annotations

import aiohttp
import pytest

from nodewire.errors import BadInput, NotAllowed
from nodewire.net import address_policy

PRIVATE = [
    "https://127.0.0.1/",
    "https://10.1.2.3/",
    "https://192.168.0.1:8443/",
    "https://169.254.169.254/latest/meta-data",
    "https://0.0.0.0/",
    "https://[::1]/",
    "https://[fe80::1]/",
    "https://[fd00::1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://224.0.0.1/",
]


@pytest.mark.parametrize("url", PRIVATE)
async def test_addresses_that_are_not_public_need_leave(url):
    with pytest.raises(NotAllowed):
        address_policy.connector(address_policy.parse(url), allow_private=False)
    await address_policy.connector(address_policy.parse(url), allow_private=True).close()


@pytest.mark.parametrize(
    ("host", "error"),
    [
        ("localhost", NotAllowed),
        ("2130706433", aiohttp.InvalidURL),
        ("127.1", aiohttp.InvalidURL),
        ("0x7f.1", (NotAllowed, aiohttp.ClientError)),  # a resolver of the system's may know what that is
    ],
)
async def test_names_are_looked_at_when_they_are_dialled(host, error):
    url = address_policy.parse(f"https://{host}/")
    with pytest.raises(error):
        async with aiohttp.ClientSession(connector=address_policy.connector(url, allow_private=False)) as session:
            await session.get(url)


async def test_plain_http_is_for_private_addresses_only():
    with pytest.raises(NotAllowed, match="https only"):
        address_policy.connector(address_policy.parse("http://127.0.0.1/"), allow_private=False)
    with pytest.raises(NotAllowed, match="public"):
        address_policy.connector(address_policy.parse("http://1.1.1.1/"), allow_private=True)


@pytest.mark.parametrize(
    "text", ["file:///etc/passwd", "https://", "https://a:b@c/", "https://a/#b", "https://a:99999/"]
)
def test_what_is_no_url_is_refused(text):
    with pytest.raises(BadInput):
        address_policy.parse(text)


@pytest.mark.parametrize(
    ("urls", "private"),
    [
        (["ws://127.0.0.1:7777", "ws://[::1]:7777"], True),
        (["ws://192.168.1.2:7777"], True),
        (["ws://127.0.0.1:7777", "wss://8.8.8.8"], False),
        (["wss://no-such-name.invalid"], False),
        (["not a url"], False),
        (["ws://[fe80::1%25eth0]:1"], True),
    ],
)
async def test_a_market_is_private_if_all_of_its_hosts_are(urls, private):
    assert await address_policy.are_private(urls) is private
