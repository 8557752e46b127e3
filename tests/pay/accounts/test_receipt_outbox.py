"""A zap receipt stands at each relay that its request names, or it is written down why it never will."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from nodewire.errors import Busy, LinkLost, NotAllowed, RelayRefused, TimedOut
from nodewire.nostr import event as events
from nodewire.nostr.keys import Keys
from nodewire.pay.accounts import receipt_outbox
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.accounts.receipt_outbox import KEPT_S, MAX_RELAYS, OWN, ReceiptCourier, relays_of

KEYS = Keys(b"\x02" * 32)
A, B, C = "wss://a.example", "wss://b.example", "wss://c.example"


def receipt(number=0):
    return events.sign(KEYS, 9_735, created_at=number, content="")


class Relays:
    """Relays that say what a test wants: by URL, the errors with which they answer first."""

    def __init__(self, **answers):
        self.taken, self.asked = [], []
        self.answers = answers

    async def publish(self, event, relays):
        url = relays[0] if relays else OWN
        self.asked.append(url)
        left = self.answers.get(url)
        if left:
            raise left.pop(0) if isinstance(left, list) else left
        self.taken.append((url, event.id))


@pytest.fixture
def ledger(tmp_path):
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


@contextlib.asynccontextmanager
async def running(courier):
    task = asyncio.create_task(courier.run())
    try:
        async with asyncio.timeout(30):
            yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(holds):
    while not holds():
        await asyncio.sleep(0.005)


async def test_a_receipt_stands_at_each_of_the_relays_and_not_at_one_of_them(ledger):
    relays, one = Relays(), receipt()
    ledger.receipts.enter(one, (A, B, OWN), time.time())
    async with running(ReceiptCourier(ledger.receipts, relays.publish, time.time)):
        await until(lambda: len(relays.taken) == 3)
    assert sorted(relays.taken) == [(OWN, one.id), (A, one.id), (B, one.id)]
    assert ledger.receipts.standing(one.id) == dict.fromkeys((A, B, OWN), ("stands", ""))
    assert ledger.receipts.event(one.id) is None, "what is done takes no room"


@pytest.mark.parametrize("away", [LinkLost("relay", "gone"), TimedOut("relay", "slow"), Busy("relay", "rate-limited:")])
async def test_a_relay_that_is_away_is_asked_again_and_one_that_refuses_is_not(ledger, away):
    relays, one = Relays(**{A: [away, away], B: RelayRefused("relay", "blocked: no zaps here")}), receipt()
    ledger.receipts.enter(one, (A, B), time.time())
    async with running(ReceiptCourier(ledger.receipts, relays.publish, time.time)):
        await until(lambda: relays.taken)
        await until(lambda: not ledger.receipts.relays())
    assert (relays.asked.count(A), relays.asked.count(B)) == (3, 1)
    assert ledger.receipts.standing(one.id) == {
        A: ("stands", ""),
        B: ("refused", "relay: blocked: no zaps here"),
    }


async def test_an_address_that_is_not_dialled_is_written_down_as_refused(ledger, caplog):
    relays, one = Relays(**{A: NotAllowed("url", "not a public address\x1b[2J")}), receipt()
    ledger.receipts.enter(one, (A,), time.time())
    assert await ReceiptCourier(ledger.receipts, relays.publish, time.time).bring_all() == []
    assert ledger.receipts.standing(one.id)[A][0] == "refused"
    assert A in caplog.text and "\x1b" not in caplog.text


async def test_what_waits_survives_a_restart(tmp_path):
    one, path = receipt(), tmp_path / "ledger.db"
    first = Ledger(path)
    first.receipts.enter(one, (A, B), time.time())
    down = Relays(**{A: LinkLost("relay", "gone")})
    await ReceiptCourier(first.receipts, down.publish, time.time).bring_all()
    assert down.taken == [(B, one.id)]
    first.close()
    second, up = Ledger(path), Relays()
    second.receipts.enter(one, (A, B), time.time())  # the till signs the same receipt again
    async with running(ReceiptCourier(second.receipts, up.publish, time.time)):
        await until(lambda: up.taken)
    assert up.taken == [(A, one.id)]
    second.close()


async def test_a_relay_that_is_away_for_a_week_is_given_up_and_the_providers_own_never(ledger):
    now_s = [1_000_000]
    relays = Relays(**{A: LinkLost("relay", "gone"), OWN: LinkLost("relay", "gone")})
    one = receipt()
    ledger.receipts.enter(one, (A, OWN), now_s[0])
    courier = ReceiptCourier(ledger.receipts, relays.publish, lambda: now_s[0])
    now_s[0] += KEPT_S - 1
    assert len(await courier.bring_all()) == 2
    now_s[0] += 1
    assert len(await courier.bring_all()) == 1
    assert ledger.receipts.standing(one.id) == {A: ("given up", "relay: gone"), OWN: ("waiting", "")}


async def test_a_host_that_is_away_is_left_alone_for_longer_and_longer(ledger, monkeypatch):
    """Twenty receipts, at two paths of one host, are no reason to ask forty times."""
    monkeypatch.setattr(receipt_outbox, "_AGAIN_S", 0.05)
    began, tried = asyncio.get_running_loop().time(), []
    for number in range(20):
        ledger.receipts.enter(receipt(number), (A, f"{A}/other"), time.time())

    async def publish(event, urls):
        tried.append(asyncio.get_running_loop().time() - began)
        raise LinkLost("relay", "gone")

    async with running(ReceiptCourier(ledger.receipts, publish, time.time)):
        await asyncio.sleep(1.0)
    assert max(tried) > 0.35, "it is asked again"
    assert len(tried) <= 4 * 5, "at most five rounds in a second, of four at a time"


async def test_a_host_that_never_answers_keeps_others_from_nothing(ledger):
    async def publish(event, urls):
        if urls and "slow" in urls[0]:
            await asyncio.Event().wait()
        taken.append((urls, event.id))

    taken = []
    for number in range(30):
        ledger.receipts.enter(receipt(number), [f"wss://slow{n}.example" for n in range(7)], time.time())
    ledger.receipts.enter(receipt(99), (A, OWN), time.time())
    courier = ReceiptCourier(ledger.receipts, publish, time.time)
    async with running(courier):
        await until(lambda: len(taken) == 2)
        ledger.receipts.enter(receipt(100), (B,), time.time())
        courier.wake()
        await until(lambda: len(taken) == 3)
    assert {urls for urls, _ in taken} == {(A,), (), (B,)}


async def test_so_many_hosts_are_visited_at_a_time_and_no_more(ledger):
    begun = []

    async def publish(event, urls):
        begun.append(urls[0])
        await asyncio.Event().wait()

    ledger.receipts.enter(receipt(), [f"wss://slow{n}.example" for n in range(20)], time.time())
    async with running(ReceiptCourier(ledger.receipts, publish, time.time)):
        await until(lambda: len(begun) >= receipt_outbox._HOSTS_AT_ONCE)
        await asyncio.sleep(0.1)
    assert len(begun) == receipt_outbox._HOSTS_AT_ONCE


async def test_receipts_that_own_relays_refuse_stand_in_nobodys_way(ledger, monkeypatch):
    monkeypatch.setattr(receipt_outbox, "_PAGE", 4)
    monkeypatch.setattr(receipt_outbox, "_AGAIN_S", 0.0)
    bad, taken = {receipt(n).id for n in range(8)}, []

    async def publish(event, urls):
        if event.id in bad:
            raise RelayRefused("event", "blocked")
        taken.append(event.id)

    for number in range(9):
        ledger.receipts.enter(receipt(number), (OWN,), time.time())
    async with running(ReceiptCourier(ledger.receipts, publish, time.time)):
        await until(lambda: taken)
    assert taken == [receipt(8).id]


def test_a_request_names_so_many_relays_and_no_more():
    named = [f"wss://r{n}.example" for n in range(40)]
    assert relays_of(named) == (*named[:MAX_RELAYS], OWN)
    assert relays_of([]) == (OWN,)


def test_relays_are_told_apart_as_they_are_meant_and_what_is_none_is_passed_over():
    named = ["WSS://A.example/", A, "wss://a.example:443", "http://a.example", "wss://u@a.example", "wss://", "x" * 400]
    assert relays_of([*named, "wss://a.example/?x=1", "wss://b.example/\n", "wss://b.example/in"]) == (
        A,
        "wss://b.example/in",
        OWN,
    )


def test_the_providers_own_relays_are_asked_apart_only_where_none_of_them_is_named():
    assert relays_of([A, B], frozenset({B, C})) == (A, B)
    assert relays_of([A], frozenset({B, C})) == (A, OWN)
