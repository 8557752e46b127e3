"""Anyone can re-derive a plan from what it cites; a plan that differs is told where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodewire.plan.assign import Busy
from nodewire.plan.audit import EpochEvidence, audit
from nodewire.protocol.committee import beacon
from nodewire.protocol.committee.quorum_certificate import Certificate
from nodewire.protocol.job import feedback
from tests.plan.markets import CUSTOMER_KEYS, World, generous, ring
from tests.protocol.committee.actors import digest, keys


@pytest.fixture(scope="module")
def world():
    return World(ring(4))


def evidence(world, **changes):
    shown = EpochEvidence(world.certificate, [beacon.parse(event) for event in world.partials], world.blob)
    return {
        "customer": CUSTOMER_KEYS.public,
        "manifest": world.manifest,
        "committee": world.committee,
        "evidence": shown,
        **changes,
    }


def said(provider, status, customer=CUSTOMER_KEYS.public):
    return feedback.build(provider.keys, digest("request"), customer, status, created_at=0)


def test_the_plan_that_follows_has_no_findings(world):
    assert audit(world.assign(), **evidence(world)) == []
    assert audit(world.assign(generous(driver="local"), k=3), **evidence(world)) == []


def test_a_plan_with_cited_busy_feedbacks_is_rederived_with_them(world):
    event = said(world.providers[0], "busy")
    plan = world.assign(busy=(Busy.cited(event, CUSTOMER_KEYS.public),))
    assert audit(plan, **evidence(world, busy=[event])) == []
    assert [f.path for f in audit(plan, **evidence(world))] == ["busy"]
    somebody = keys("somebody").public
    for other in (said(world.providers[0], "success"), said(world.providers[0], "busy", customer=somebody)):
        plan = plan.model_copy(update={"busy": (other.id,)})
        assert [f.path for f in audit(plan, **evidence(world, busy=[other]))] == ["busy"]


def test_a_swapped_node_is_found_with_its_path(world):
    plan = world.assign()
    for at in range(len(plan.tasks)):
        tasks = list(plan.tasks)
        tasks[at] = tasks[at].model_copy(update={"provider": keys("friend").public})
        findings = audit(plan.model_copy(update={"tasks": tuple(tasks)}), **evidence(world))
        assert [f.path for f in findings] == [f"tasks[{at}].provider"]
        assert findings[0].found == keys("friend").public
        assert findings[0].expected == plan.tasks[at].provider


def test_changed_terms_deadlines_and_citations_are_found(world):
    plan = world.assign()
    assert [f.path for f in audit(plan.model_copy(update={"next_result_ms": 1}), **evidence(world))] == [
        "next_result_ms"
    ]
    for name in ("snapshot", "certificate", "manifest", "committee"):
        findings = audit(plan.model_copy(update={name: digest("other")}), **evidence(world))
        assert [f.path for f in findings] == [name]
    assert [f.path for f in audit(plan, **evidence(world, customer=keys("thief").public))] == ["customer"]
    assert audit(plan.model_copy(update={"terms": generous(regions=("moon",))}), **evidence(world))[0].path == "driver"


def test_a_forged_beacon_certificate_or_snapshot_is_found(world):
    plan = world.assign()

    def paths(**changes):
        shown = evidence(world)
        return {f.path for f in audit(plan, **{**shown, "evidence": replace(shown["evidence"], **changes)})}

    assert "beacon" in {f.path for f in audit(plan.model_copy(update={"beacon": digest("b")}), **evidence(world))}
    assert paths(partials=[beacon.parse(event) for event in world.partials[:2]]) == {"beacon"}
    assert paths(certificate=Certificate(world.certificate.body, world.certificate.votes[:2])) == {"certificate"}
    assert paths(snapshot_blob=world.blob[:-1]) == {"snapshot"}
