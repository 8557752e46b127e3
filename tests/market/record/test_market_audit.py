"""Anyone can re-derive a finished job's plan; a plan that was altered is found out by readers and by its providers."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from nodewire.cli import app
from nodewire.nostr.nips.nip01 import Filter
from nodewire.protocol import kinds
from tests.market.questions import answers, request_event, send_tickets, the_request

OTHER = "5e" * 32


@pytest.fixture(scope="module")
def bought(market):
    """A finished job of alice's."""

    async def buy():
        async with market.customer("alice") as alice:
            await alice.embed(market.encoder["address"], ["the cat sat"])
            return await the_request(market, alice.last["request"])

    return asyncio.run(buy())


def audit(market, id_, *, name="alice"):
    """What `nodewire audit` prints, and its exit code."""
    done = CliRunner().invoke(app, ["audit", id_, "--config", str(market.config_of(name)), "--json"])
    return json.loads(done.stdout), done.exit_code


def with_task(plan, number, **changes):
    tasks = list(plan.tasks)
    tasks[number] = tasks[number].model_copy(update=changes)
    return plan.model_copy(update={"tasks": tuple(tasks), "chunk_msat": sum(t.price_msat for t in tasks)})


ALTERATIONS = {
    # what is altered: (the plan from the plan, where the audit finds it, what the providers answer)
    "a task's provider": (
        lambda plan: with_task(plan, 0, provider=plan.tasks[1].provider),
        "tasks[0].provider",
        "bad-plan not-allowed",  # the one that is named has not got the task
    ),
    "a price": (lambda plan: with_task(plan, 1, price_msat=1), "tasks[1].price_msat", "bad-plan"),
    "the beacon": (lambda plan: plan.model_copy(update={"beacon": OTHER}), "beacon", "bad-plan"),
    "the epoch": (lambda plan: plan.model_copy(update={"epoch": plan.epoch - 1}), "epoch", "bad-plan"),
    "the snapshot": (lambda plan: plan.model_copy(update={"snapshot": OTHER}), "snapshot", "bad-plan"),
    "the certificate": (lambda plan: plan.model_copy(update={"certificate": OTHER}), "certificate", "no-quorum"),
    "a deadline": (lambda plan: plan.model_copy(update={"next_result_ms": 1}), "next_result_ms", "bad-plan"),
    "the redraw beyond the last": (lambda plan: plan.model_copy(update={"k": 8}), "k", ""),  # malformed: no answer
    "the terms": (
        lambda plan: plan.model_copy(
            update={"terms": plan.terms.model_copy(update={"excluded": (plan.tasks[0].provider,)})}
        ),
        "tasks[0].provider",
        "bad-plan",
    ),
    "the manifest": (lambda plan: plan.model_copy(update={"manifest": OTHER}), "manifest", "not-allowed"),
    "the committee": (lambda plan: plan.model_copy(update={"committee": OTHER}), "committee", "not-allowed"),
}


def test_a_finished_job_is_audited_from_public_records_alone(market, bought):
    found, code = audit(market, bought.id)
    assert (found["ok"], found["findings"], code) == (True, [], 0)
    paid = [line for line in found["lines"] if line["step"] == "payment"]
    assert paid and {line["state"] for line in paid} == {"ok"}
    assert {line["state"] for line in found["lines"] if line["step"] == "ledger"} == {"ok"}
    assert {line["state"] for line in found["lines"]} <= {"ok", "missing"}
    stranger, code = audit(market, bought.id, name="watcher")
    assert (stranger["ok"], code) == (True, 0)
    assert not [line for line in stranger["lines"] if line["step"] == "ledger"]


@pytest.fixture(scope="module")
def altered(market):
    """Every alteration of one new request, signed by the customer's own key, published; and what came back."""
    return asyncio.run(_publish_altered(market))


async def _publish_altered(market):
    async with market.customer("mallory") as mallory, market.pool() as pool, market.customer("bob") as bob:
        keys = market.keys("mallory")
        async with asyncio.timeout(200):
            while True:  # who was slow on a busy machine may be missing in one snapshot
                await mallory.embed(market.encoder["address"], ["the cat"])
                base = await the_request(market, mallory.last["request"])
                if all(task["holders"] >= 2 for task in mallory.last["tasks"][:2]):
                    break
        events = {what: request_event(keys, base, change(base.plan)) for what, (change, _, _) in ALTERATIONS.items()}
        events["partials"] = request_event(keys, base, base.plan, partials=base.partials[:-1])

        async def publish(event):
            await pool.publish(event)
            await send_tickets(pool, keys, event)

        honest = asyncio.create_task(bob.embed(market.encoder["address"], ["a dog ran"]))
        await asyncio.gather(*map(publish, events.values()))
        answered = [event for what, event in events.items() if what not in ALTERATIONS or ALTERATIONS[what][2]]
        wanted = sum(len(set(event.values("p"))) for event in answered)
        said = await answers(pool, list(events.values()), wanted)
        assert (await honest).shape == (1, 32)
    return events, said


@pytest.mark.parametrize("what", ALTERATIONS)
def test_the_audit_names_what_was_altered(market, altered, what):
    events, _ = altered
    found, code = audit(market, events[what].id)
    assert (found["ok"], code) == (False, 1)
    assert ALTERATIONS[what][1] in [finding["path"] for finding in found["findings"]]


def test_the_audit_misses_a_partial_of_the_beacon(market, altered):
    found, code = audit(market, altered[0]["partials"].id)
    assert ([finding["path"] for finding in found["findings"]], code) == (["beacon"], 1)


async def test_every_provider_refuses_what_was_altered_and_serves_others_meanwhile(market, altered):
    events, said = altered
    assert {answer.status for answer in said} == {"error"}
    codes = {what: {a.text for a in said if a.request == event.id} for what, event in events.items()}
    expected = {what: set(said_by.split()) for what, (_, _, said_by) in ALTERATIONS.items()}
    assert codes == {**expected, "partials": {"no-quorum"}}
    computed = await market.events(
        Filter(kinds=frozenset({6843}), tags={"e": frozenset(event.id for event in events.values())})
    )
    assert computed == []
    assert kinds.result_of(kinds.INFERENCE) == 6843


async def test_an_unknown_event_cannot_be_audited(market):
    done = await asyncio.to_thread(market.run, "audit", OTHER, "--config", str(market.config_of("alice")))
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["code"] == "not-found"
