"""A job's trail through the public record, as `nodewire audit` prints it and checks it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from nodewire.cli.common.roles import enter_market
from nodewire.config import DEFAULT_WALLET, AnyRole, OracleConfig
from nodewire.errors import BadConfig, NodewireError, NotFound

if TYPE_CHECKING:
    from nodewire.customer.audit.finding import Line
    from nodewire.market import Market
    from nodewire.nostr.pool import Pool
    from nodewire.pay.bond.bond_holder import BondHolder
    from nodewire.protocol.job.request import Request
    from nodewire.protocol.model.manifest import Manifest


async def trail_of(role: AnyRole, id_: str) -> dict[str, Any]:
    """The public record of a job: checks of its plan, findings, and the trail's lines."""
    from nodewire.nostr.nips.nip01 import Filter
    from nodewire.plan.audit import EpochEvidence
    from nodewire.plan.audit import audit as rederive
    from nodewire.protocol.committee import beacon, quorum_certificate
    from nodewire.protocol.job import request as job
    from nodewire.protocol.market.snapshot import Snapshot

    checks: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        _, pool, market = await enter_market(stack, role)
        events = await pool.fetch([Filter(ids=frozenset({id_}))], timeout_s=10.0)
        if not events:
            raise NotFound("event", f"no relay has {id_}")
        findings: list[dict[str, str]] = []
        lines: list[dict[str, Any]] = []
        request = manifest = None
        try:
            request = job.parse(events[0])
            checks["the request is well-formed, signed, and its tags say what the plan says"] = ""
            manifest = await market.manifest(request.manifest_address, request.plan.manifest)
            cited = await market.certificate_event(request.certificate_event)
            proof = quorum_certificate.parse(cited)
            checks["the committee's quorum certificate is there"] = ""
            path = await market.fetch_blob(proof.body.snapshot, Snapshot.MAX_BYTES)
            blob = await asyncio.to_thread(path.read_bytes)
            checks["the certified snapshot is there and has its hash"] = ""
            busy = []
            if request.plan.busy:
                busy = await pool.fetch([Filter(ids=frozenset(request.plan.busy))], timeout_s=10.0)
            found = rederive(
                request.plan,
                customer=request.customer,
                manifest=manifest,
                committee=market.committee,
                evidence=EpochEvidence(proof, [beacon.parse(partial) for partial in request.signed_partials()], blob),
                busy=busy,
            )
            findings = [{"path": f.path, "expected": f.expected, "found": f.found} for f in found]
            checks["assign/2 over certificate, beacon and snapshot gives this plan"] = (
                f"{len(findings)} fields differ" if findings else ""
            )
        except NodewireError as error:
            checks[error.code] = str(error)
            findings.append({"path": error.field, "expected": "", "found": error.reason or str(error)})
        if request is not None and manifest is not None:
            lines = [asdict(line) for line in await _trail(stack, role, request, manifest, market, pool)]
    holds = not any(checks.values()) and all(line["state"] != "wrong" for line in lines)
    return {"request": id_, "ok": holds, "checks": checks, "findings": findings, "lines": lines}


async def _trail(
    stack: AsyncExitStack,
    role: AnyRole,
    request: Request,
    manifest: Manifest,
    market: Market,
    pool: Pool,
) -> list[Line]:
    from nodewire.customer.audit import payments, public_events, verdicts, work
    from nodewire.nostr.keys import Keys
    from nodewire.pay import registry
    from nodewire.pay.accounts.ledger import Ledger

    found = await public_events.read(request, manifest, market, pool)
    lines = list(work.lines(found))
    lines += (await verdicts.lines(found, market, _holder(stack, role)))[0]
    kind, network = (role.wallet.kind, role.wallet.network) if role.wallet is not None else (DEFAULT_WALLET, "")
    lines += payments.lines(found, registry.network_of(kind, network))
    if (
        not isinstance(role, OracleConfig)
        and role.ledger.exists()
        and Keys.from_file(role.key).public == request.customer
    ):
        ledger = Ledger(role.ledger)
        stack.callback(ledger.close)
        lines += payments.ledger(found, ledger.debts_of(request.id))
    return lines


def _holder(stack: AsyncExitStack, role: AnyRole) -> BondHolder | None:
    """The bonds' holder that the role's wallet reaches; None without a wallet."""
    from nodewire.pay import registry

    if role.wallet is None:
        return None
    try:
        wallet = registry.wallet_class(role.wallet.kind).from_file(role.wallet.url, role.wallet.token_file)
    except BadConfig:
        return None
    stack.push_async_callback(wallet.close)
    return registry.bond_holder(role.wallet.kind, wallet, role.holder)
