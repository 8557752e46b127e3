"""What daemons of a real market show Prometheus: all that is documented, what a job moves, and nobody's secret."""

from __future__ import annotations

import asyncio
import re
import time

from nodewire.nostr.keys import npub
from nodewire.nostr.nips.nip01 import Filter
from tests.market.market_process import DECODER_MSAT, GUESTS, STALLS
from tests.market.questions import request_event, the_request
from tests.metrics.scrape import documented, families, fetched, label_names, value, values

PROMPT = "a very private prompt about figures"
TOKENS = 100
CHUNKS = 3
"""The prompt's and two of tokens."""
WITHOUT = {"provider": {"nodewire_provider_training_workers_free"}}
"""By daemon, what is not configured here."""
FRESH_S = 1.1


async def scraped(market, *names):
    """What these daemons show now: no older answer."""
    await asyncio.sleep(FRESH_S)
    return dict(
        zip(
            names,
            await asyncio.gather(*(asyncio.to_thread(fetched, market.metrics[name]) for name in names)),
            strict=True,
        )
    )


async def until(market, name, holds, timeout_s=20.0):
    """A text of `name` that `holds`."""
    end_s = time.monotonic() + timeout_s
    while not holds(text := (await scraped(market, name))[name]):
        assert time.monotonic() < end_s, text
    return text


def daemon(name):
    return name if name == "relay" else "oracle" if name.startswith("oracle") else "provider"


async def test_every_daemon_shows_what_is_documented_and_nothing_else(market):
    for name, text in (await scraped(market, "relay", "oracle-1", *STALLS)).items():
        rows = [row for row in documented() if row.daemons == "all" or daemon(name) in row.daemons.split(", ")]
        rows = [row for row in rows if row.name not in WITHOUT.get(daemon(name), ())]
        assert families(text) == {row.name: row.kind for row in rows}, name
        labels = label_names(text)
        assert {row.name: labels[row.name] for row in rows if labels[row.name]} == {
            row.name: set(row.labels) for row in rows if labels[row.name]
        }
        assert value(text, "nodewire_scrape_failures_total") == 0
        assert any(dict(said).get("daemon") == daemon(name) for _, said in values(text))


async def test_a_job_moves_the_counts_of_all_that_had_a_part_in_it(market):
    names = ("relay", "ada", "bea", "cyd")
    for name in names[1:]:  # what an earlier customer began is over
        await until(market, name, lambda text: not value(text, "nodewire_provider_jobs_in_flight", kind="8843"))
    before = await scraped(market, *names)
    async with market.customer("counted") as customer:
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=TOKENS):
            pass
        paid = customer.last["paid_msat"]
    after = await scraped(market, *names)

    def moved(name, metric, **labels):
        return value(after[name], metric, **labels) - value(before[name], metric, **labels)

    served = {"kind": "8843", "outcome": "served", "code": ""}
    for name, tasks in (("ada", 1), ("bea", 2), ("cyd", 1)):
        had = value(before[name], "nodewire_provider_jobs_total", **served)

        def has_served(text, had=had):
            return value(text, "nodewire_provider_jobs_total", **served) > had

        after[name] = await until(market, name, has_served)
        assert moved(name, "nodewire_provider_jobs_total", **served) == 1
        assert moved(name, "nodewire_provider_job_seconds_count", kind="8843") == 1
        assert moved(name, "nodewire_provider_chunks_total") == CHUNKS
        assert moved(name, "nodewire_provider_paid_msat_total") == paid[market.public[name]]
        assert moved(name, "nodewire_provider_paid_msat_total") == CHUNKS * tasks * DECODER_MSAT
        assert moved(name, "nodewire_provider_payments_total") == CHUNKS
        assert moved(name, "nodewire_worker_calls_total", worker="serve-0") >= TOKENS * tasks
        assert moved(name, "nodewire_worker_call_seconds_count", worker="serve-0") >= TOKENS * tasks
        assert moved(name, "nodewire_worker_wait_seconds_count", worker="serve-0") >= TOKENS * tasks
        assert moved(name, "nodewire_worker_cpu_seconds_total", worker="serve-0") > 0
        assert moved(name, "nodewire_wire_bytes_total", way="in") > 0
        assert moved(name, "nodewire_wire_bytes_total", way="out") > 0
        assert value(after[name], "nodewire_provider_jobs_in_flight", kind="8843") == 0
        assert value(after[name], "nodewire_provider_owed_msat") == 0
        assert value(after[name], "nodewire_worker_up", worker="serve-0") == 1
        assert 0 <= value(after[name], "nodewire_worker_memory_bytes", worker="serve-0") < 60e6
        assert value(after[name], "nodewire_worker_memory_cap_bytes", worker="serve-0") == 60e6
        assert value(after[name], "nodewire_worker_resident_memory_bytes", worker="serve-0") > 60e6  # torch is in it
        assert sum(v for (metric, _), v in values(after[name]).items() if metric == "nodewire_wire_links") > 0
    assert moved("relay", "nodewire_relay_events_total", outcome="accepted", reason="") > 10
    assert moved("relay", "nodewire_relay_events_delivered_total") > 10
    assert moved("relay", "nodewire_relay_ingest_seconds_count") >= moved(
        "relay", "nodewire_relay_events_total", outcome="accepted", reason=""
    )
    assert value(after["relay"], "nodewire_relay_connections") >= len(STALLS) + 4
    assert value(after["relay"], "nodewire_relay_blob_bytes") > 0


async def test_a_refused_request_is_counted_by_why(market):
    async with market.customer("weak") as customer:
        await customer.embed(market.encoder["address"], ["the cat"])
        base = await the_request(market, customer.last["request"])
    refused = {"kind": "8843", "outcome": "refused", "code": "bad-tag"}
    before = (await scraped(market, "ada"))["ada"]
    async with market.pool() as pool:
        await pool.publish(request_event(market.keys("weak"), base, base.plan, bits=0))
    await until(
        market,
        "ada",
        lambda text: (
            value(text, "nodewire_provider_jobs_total", **refused)
            == value(before, "nodewire_provider_jobs_total", **refused) + 1
        ),
    )


async def test_the_committee_and_the_bond_are_seen(market):
    def is_certified(text):
        return value(text, "nodewire_provider_certified") == 1

    text = await until(market, "bea", is_certified)
    assert value(text, "nodewire_provider_bond_msat") == STALLS["bea"].bond_msat
    assert value(text, "nodewire_provider_bond_statement_expires_timestamp_seconds") > time.time()
    newest = value(text, "nodewire_market_certified_epoch")
    assert 0 <= value(text, "nodewire_market_epoch") - newest <= 3
    oracle = await until(market, "oracle-2", lambda text: value(text, "nodewire_oracle_certified_epoch") > newest)
    assert value(oracle, "nodewire_oracle_epochs_total", outcome="certified") > 0
    assert value(oracle, "nodewire_oracle_votes_total", topic="epoch") > 0
    assert value(oracle, "nodewire_oracle_certificate_seconds_count") > 0
    assert value(oracle, "nodewire_oracle_nodes") >= len(STALLS)


async def test_looking_for_oneself_in_snapshots_leaves_none_on_the_disk(market):
    def kept():
        return {path.name for path in (market.folder / "cyd" / "state" / "blobs").rglob("[0-9a-f]" * 64)}

    text = await until(market, "cyd", lambda text: value(text, "nodewire_provider_certified") == 1)
    before, epoch = kept(), value(text, "nodewire_market_certified_epoch")
    await until(market, "cyd", lambda text: value(text, "nodewire_market_certified_epoch") > epoch + 2)
    some = kept()  # one may be being read
    await asyncio.sleep(FRESH_S)
    assert some & kept() == before


async def test_nobodys_key_address_job_prompt_or_folder_is_shown(market):
    async with market.customer("shy") as customer:
        async for _ in customer.generate(market.decoder["address"], PROMPT, max_tokens=20):
            pass
        said = [PROMPT, customer.last["text"], customer.last["request"], customer.last["ticket"]]
    texts = await scraped(market, *market.metrics.keys() & {"relay", *STALLS, *(f"oracle-{n}" for n in range(1, 5))})
    events = await market.events(Filter())
    said += [event.id for event in events] + [event.pubkey for event in events]
    said += [npub(key) for key in {event.pubkey for event in events}]
    said += [market.relay, market.simnet, market.blossom, market.committee, str(market.folder), "127.0.0.1"]
    said += [(market.folder / name / "wallet.token").read_text().strip() for name in STALLS]
    for name, text in texts.items():
        assert not [one for one in said if one and one in text], name
        # Nor what is like them: keys, ids, hashes, hosts, paths.
        shown = " ".join(text for _, labels in values(text) for _, text in labels)
        assert not re.search(r"[0-9a-f]{16}|npub1|nsec1|://|\d+\.\d+\.\d+\.\d+|/", shown), name
        assert len(text) < 100_000


async def test_a_provider_with_its_own_relay_shows_both(market):
    """The slowest: it has a part in no plan of others' tests."""
    command = ["up", "--config", str(market.config_of("fay")), "--port", "0"]
    await asyncio.to_thread(market.spawn, "fay", *command)
    try:
        await asyncio.to_thread(market.ready, "fay")
        text = (await scraped(market, "fay"))["fay"]
        rows = [row for row in documented() if {"all", "provider", "relay"} & set(row.daemons.split(", "))]
        assert families(text) == {row.name: row.kind for row in rows if row.name not in WITHOUT["provider"]}
        assert value(text, "nodewire_provider_bond_msat") in (0, GUESTS["fay"].bond_msat)
        assert any(dict(labels).get("daemon") == "up" for _, labels in values(text))
    finally:
        await asyncio.to_thread(market.stop_one, "fay")


def test_doctor_says_that_a_free_port_is_of_no_use(market):
    done = market.run("doctor", "--config", str(market.config_of("ada")))
    assert b"Prometheus needs a fixed one" in done.stdout
