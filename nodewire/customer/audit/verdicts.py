"""What the beacon drew of a job, what the committee judged, and what the bonds' holder made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from nodewire.customer.audit.finding import Line, missing_line, not_yet, ok, wrong
from nodewire.customer.audit.verdict_watcher import VERDICT_EPOCHS
from nodewire.errors import NodewireError, NotFound
from nodewire.pay.bond import settlement
from nodewire.plan.sample import draw, place
from nodewire.protocol.committee import beacon
from nodewire.protocol.verification import verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nodewire.customer.audit.public_events import Record
    from nodewire.market import Market
    from nodewire.nostr.event import Event
    from nodewire.pay.bond.bond_holder import HeldBond, VerdictSettlement
    from nodewire.pay.bond.settlement import PricedVerdict
    from nodewire.protocol.committee.committee import Committee
    from nodewire.protocol.job.plan import Plan
    from nodewire.protocol.verification.sample import Sample
    from nodewire.protocol.verification.verdict import Certificate, Verdict


class Holder(Protocol):
    """What anybody may ask a bond holder (`nodewire.pay.bond.bond_holder`)."""

    async def case(self, case: str) -> VerdictSettlement: ...

    async def bond(self, provider: str) -> HeldBond: ...

    async def treasury(self, request: str) -> tuple[int, int]: ...


@dataclass(slots=True)
class JobVerdicts:
    """`verdicts` are those that hold, by the sample's key."""

    samples: dict[str, Sample] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    """In which each was drawn."""
    unread: set[int] = field(default_factory=set)
    """The epochs of which it is unknown what they drew."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    cases: dict[str, VerdictSettlement] = field(default_factory=dict)


async def lines(record: Record, market: Market, holder: Holder | None) -> tuple[list[Line], JobVerdicts]:
    """`holder` is None if it is not known where to ask it."""
    judged = JobVerdicts()
    found = await _draws(record, market, judged)
    found += _verdicts(record, market.committee, judged)
    if holder is not None:
        found += await _share(record, market.committee, holder)
        for key, one in judged.verdicts.items():
            found += await _bond(key, one, record, market.committee, holder, judged)
    elif judged.verdicts:
        found.append(missing_line("bond", "all verdicts", "it is not known where the bonds' holder can be asked"))
    return found, judged


async def _draws(record: Record, market: Market, judged: JobVerdicts) -> list[Line]:
    if record.request.plan.verification.policy != "sampled":
        return [ok("draw", "the job", "its customer had nothing sampled")]
    found: list[Line] = []
    seen: set[str] = set()
    for epoch in sorted({one.epoch for one in record.finality.roots.values()}):
        held = [one for one in record.finality.roots.values() if one.epoch == epoch]
        places = {place(one.provider, one.root.request, one.root.task, one.root.chunk) for one in held}
        what, body = f"epoch {epoch}", record.finality.certificates[epoch].body
        try:
            value = beacon.combine(market.committee, body.digest(), record.partials.get(epoch, ()))
            snapshot = await market.snapshot(body.snapshot)
            certified = await market.contents(body)
        except NodewireError as error:
            seen |= places
            judged.unread.add(epoch)
            found.append(missing_line("draw", what, f"what it drew is unknown: {error}"))
            continue
        if certified.lacking:  # whether more was drawn is unknown
            judged.unread.add(epoch)
        mine = [one for one in certified.commitments if one.is_about(record.request.id)]
        drawn = draw(market.committee, value, mine, {record.request.id: record.request}, snapshot, seen=seen)
        seen |= places
        for sample in drawn:
            judged.samples[sample.key] = sample
            judged.epochs[sample.key] = epoch
        found.append(ok("draw", what, f"beacon {value[:16]} drew {len(drawn)} of {len(held)} roots"))
    return found


def _verdicts(record: Record, committee: Committee, judged: JobVerdicts) -> Iterator[Line]:
    held, broken, ids = _certified(record.verdicts, committee)
    for key, sample in judged.samples.items():
        what = f"{sample.task} of chunk {sample.chunk} by {sample.provider[:8]}"
        found = {one.verdict.digest(): one for one in held.pop(key, ())}
        if not found:
            if key in broken:
                yield wrong("verdict", what, f"its certificate does not hold: {broken.pop(key)}")
            else:
                last = judged.epochs[key] + VERDICT_EPOCHS
                if again_s := record.seconds_to(last):
                    yield not_yet("verdict", what, f"it is judged by epoch {last}", again_s)
                else:
                    yield missing_line("verdict", what, "no certificate judges it, and its time is over")
            continue
        if len(found) > 1:
            yield wrong("verdict", what, "two different verdicts are certified")
            continue
        (one,) = found.values()
        said = one.verdict
        if fault := _contradiction(said, sample, judged.epochs[key], record.request.plan):
            yield wrong("verdict", what, fault)
            continue
        judged.verdicts[key] = said
        convicts = f", convicts {', '.join(one[:8] for one in said.convicted)}" if said.convicted else ""
        name = f"; certificate {ids[said.digest()]}" if said.outcome != "pass" or said.convicted else ""
        yield ok("verdict", what, f"{said.outcome}{convicts}; {len(one.votes)} oracles voted{name}")
    unread = judged.unread | record.finality.unread.keys()
    unread |= {one.epoch for one in record.finality.committed.values()} - record.finality.certificates.keys()
    for key, certificates in held.items():
        said = certificates[0].verdict
        if said.claimed:
            yield _unfounded(key, certificates, ids, record, judged)
            continue
        what = f"{said.task} of chunk {said.chunk} by {said.provider[:8]}"
        if (drawn := _fed(said, record, judged)) is not None and len(
            {one.verdict.digest() for one in certificates}
        ) == 1:
            judged.verdicts[key] = said
            fed = f"{said.outcome}: {drawn.task} of chunk {drawn.chunk} was drawn, which it feeds"
            yield ok("verdict", what, f"{fed}; certificate {ids[said.digest()]}")
        elif said.epoch in unread:
            yield missing_line("verdict", what, "whether it was drawn is unknown")
        else:
            yield wrong("verdict", what, f"{key[:16]} was not drawn")


def _fed(said: Verdict, record: Record, judged: JobVerdicts) -> Sample | None:
    """The sample that cannot be judged unless this work is opened; None if there is none."""
    fed = {edge.target for edge in record.manifest.edges if edge.source == said.task}
    if said.outcome != "withheld":
        return None
    return next(
        (
            one
            for key, one in judged.samples.items()
            if one.task in fed and one.chunk >= said.chunk and judged.epochs[key] == said.epoch
        ),
        None,
    )


def _unfounded(
    key: str, certificates: list[Certificate], ids: Mapping[str, str], record: Record, judged: JobVerdicts
) -> Line:
    """Of a claim that, as the committee says, nothing certified stands behind."""
    said = certificates[0].verdict
    what = f"the claim of {said.provider[:8]} for chunk {said.chunk}"
    if len({one.verdict.digest() for one in certificates}) > 1:
        return wrong("verdict", what, "two different verdicts are certified")
    if record.finality.unread:
        return missing_line("verdict", what, "whether its roots were certified is unknown")
    held = record.finality.claimed(record.request.plan, said.provider, said.chunk, said.attempt, said.root)
    if held is not None and held.epoch <= said.epoch:
        return wrong("verdict", what, f"its roots were certified in epoch {held.epoch}")
    judged.verdicts[key] = said
    reason = f"withheld: nothing that was certified up to epoch {said.epoch} stands behind it"
    return ok("verdict", what, f"{reason}; certificate {ids[said.digest()]}")


def _certified(
    events: Iterable[Event], committee: Committee
) -> tuple[dict[str, list[Certificate]], dict[str, str], dict[str, str]]:
    """The certificates that hold, and why others do not, by the sample's key.

    And their event ids by the verdict's digest.
    """
    ids: dict[str, str] = {}
    held: dict[str, list[Certificate]] = {}
    broken: dict[str, str] = {}
    for event in events:
        key = (event.tag("n") or "").removeprefix("verdict/")
        try:
            one = verdict.parse(event)
            one.check(committee)
        except NodewireError as error:
            broken[key] = str(error)
            continue
        held.setdefault(one.verdict.key, []).append(one)
        ids.setdefault(one.verdict.digest(), event.id)
    return held, broken, ids


def _contradiction(said: Verdict, sample: Sample, epoch: int, plan: Plan) -> str:
    if said.root != sample.root:
        return "it judges another root than the certified one"
    if said.epoch != epoch:
        return f"it says that epoch {said.epoch} drew it, which was {epoch}"
    if strangers := {who for who, _ in said.verifiers} - set(sample.verifiers):
        return f"{min(strangers)[:8]} was not drawn to verify it"
    if said.outcome == "pass" and said.price_msat != (due_msat := plan.standing_msat(said.task, said.provider)):
        return f"it counts as {said.price_msat} msat, the plan's price is {due_msat} msat"
    return ""


async def _share(record: Record, committee: Committee, holder: Holder) -> list[Line]:
    """Whether the verification share of every chunk that was claimed has come to the treasury."""
    chunks = {chunk for _, chunk, _ in record.claims}
    due_msat = len(chunks) * settlement.share_msat(record.request.plan)
    if not due_msat:
        return []
    what = f"{len(chunks)} chunks, {due_msat} msat"
    try:
        came_msat, left_msat = await holder.treasury(record.request.id)
    except NodewireError as error:
        return [missing_line("share", what, str(error))]
    # The committee's part is taken of each share, rounded.
    if came_msat + len(chunks) < due_msat * (1_000_000 - committee.fee_ppm) // 1_000_000:
        return [missing_line("share", what, f"{came_msat} msat came to the treasury, less the committee's fee")]
    return [ok("share", what, f"{came_msat} msat came to the treasury, {left_msat} are left")]


async def _bond(
    key: str, said: Verdict, record: Record, committee: Committee, holder: Holder, judged: JobVerdicts
) -> list[Line]:
    what = f"{said.task} of chunk {said.chunk} by {said.provider[:8]}: {said.outcome}"
    try:
        finding = settlement.find(said, record.request, committee)
        settled = judged.cases[key] = await holder.case(key)
    except NotFound:
        if again_s := record.seconds_to(said.epoch + VERDICT_EPOCHS + 1):
            return [
                not_yet(
                    "bond",
                    what,
                    "an oracle presents the verdict, or whom it owes anything, to the bonds' holder",
                    again_s,
                )
            ]
        return [
            missing_line("bond", what, "nobody has presented the verdict to the bonds' holder: `nodewire bond claim`")
        ]
    except NodewireError as error:
        return [missing_line("bond", what, str(error))]
    if fault := _misjudged(finding, settled):
        return [wrong("bond", what, fault)]
    if settled.refused:
        return [missing_line("bond", what, f"it reached no bond: {settled.refused}")]
    given = ", ".join(f"{msat} msat to {payee[:8]}" for payee, msat in settled.payouts.items())
    still = ", ".join(f"{msat} msat of {payee[:8]}" for payee, msat in settled.due.items())
    told = "; ".join(part for part in (given and f"pays {given}", still and f"not pulled yet: {still}") if part)
    found = [ok("bond", what, told or "touches no bond")]
    if finding.slashes:
        found.append(await _slashed(finding, holder))
    return found


async def _slashed(finding: PricedVerdict, holder: Holder) -> Line:
    what = f"{finding.culprit[:8]}'s"
    try:
        bond = await holder.bond(finding.culprit)
    except NodewireError as error:
        return missing_line("bond", what, str(error))
    if bond.state not in ("slashed", "burnt"):
        return wrong("bond", what, f"convicted, but its bond is {bond.state}")
    return ok("bond", what, f"{bond.state}: {bond.amount_msat} msat locked, {bond.remainder_msat} left to burn")


def _misjudged(finding: PricedVerdict, settled: VerdictSettlement) -> str:
    """What is wrong with the holder's settlement of a verdict; empty if nothing is."""
    if (settled.request, settled.outcome) != (finding.request, finding.outcome):
        return f"the holder settled another verdict: {settled.outcome}"
    if (settled.culprit, settled.slashes) != (finding.culprit, finding.slashes):
        return "the holder names another culprit"
    return _misgiven(finding, settled.payouts)


def _misgiven(finding: PricedVerdict, given: Mapping[str, int]) -> str:
    """Payees and amounts against the rules: who gets anything gets it whole, but for the customer."""
    most = settlement.payouts(finding, following=0, payable_msat=10**18)
    for payee, msat in given.items():
        if payee not in most:
            return f"{payee[:8]} has no part in this verdict and gets {msat} msat"
        refunds = payee == finding.customer and finding.culprit == finding.provider
        # A verifier gets more where shares came for chunks before the sampled one.
        more = payee in finding.agreed and msat > most[payee]
        if not refunds and not more and msat != most[payee]:
            return f"{payee[:8]} gets {msat} msat, not {most[payee]}"
    return ""
