"""A job's trail holds line by line, or the line that does not is named: whatever is altered, by whoever may sign it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodewire.customer.audit import payments, public_events, verdicts, work
from nodewire.customer.payments.receipt_finalizer import Closings
from nodewire.customer.payments.refunds import Refunds
from nodewire.errors import NotFound
from nodewire.nostr import event as events
from nodewire.pay.accounts.ledger import Ledger
from nodewire.pay.bond import settlement
from nodewire.pay.bond.bond_holder import HeldBond, VerdictSettlement
from nodewire.protocol import kinds
from nodewire.protocol.job import feedback, receipt
from tests.customer.public_record import CUSTOMER, PROVIDERS, PublicRecord
from tests.protocol import documents
from tests.protocol.committee.actors import keys

STRANGER = keys("stranger")
CHEAT = PROVIDERS[1]


class BondHolder:
    """What a holder says of a job's verdicts, by the rules but for what a test alters."""

    def __init__(self) -> None:
        self.cases: dict[str, VerdictSettlement] = {}
        self.bond_state = "slashed"
        self.came_msat = 2 * 450

    async def case(self, case: str) -> VerdictSettlement:
        if case not in self.cases:
            raise NotFound("case", "never presented")
        return self.cases[case]

    async def bond(self, provider: str) -> HeldBond:
        return HeldBond("id", provider, 90_000, 45_000, self.bond_state, 0, 0, 0, tuple(self.cases))

    async def treasury(self, request: str) -> tuple[int, int]:
        return self.came_msat, 100

    def settle(self, said, told: PublicRecord) -> None:
        found = settlement.find(said, told.request, told.committee)
        given = settlement.payouts(found, following=1, payable_msat=45_000)
        self.cases[found.case] = VerdictSettlement(
            found.case, found.request, found.outcome, found.culprit, found.slashes, "id", given, "", {}
        )


class Trail:
    """One job of two chunks by three providers; `epoch` is the one that certifies and draws all of it."""

    def __init__(self) -> None:
        told = self.told = PublicRecord()
        self.epoch = told.epoch_at(told.began_s) + 1
        self.holder = BondHolder()
        for number in range(3):
            for chunk in (0, 1):
                told.claimed(number, chunk)

    def certify(self, said: str = "", *, partials: bool = True) -> None:
        told = self.told
        self.commitments = [
            told.committed(number, (0, 1), self.epoch, said if number == 1 else "") for number in range(3)
        ]
        told.certified(self.epoch, self.commitments)
        if not partials:
            told.events = [event for event in told.events if event.kind != kinds.BEACON]

    def fail(self, **changes):
        """CHEAT's chunk 1 fails."""
        fields = {"outcome": "fail", "culprit": CHEAT.public, **changes}
        return self.told.verdict(1, 1, self.epoch, **fields)

    def judge(self, *, but: tuple[int, int] = (1, 1)) -> None:
        for number in range(3):
            for chunk in (0, 1):
                if (number, chunk) != but:
                    said = self.told.verdict(number, chunk, self.epoch)
                    self.told.judged(said)
                    self.holder.settle(said, self.told)

    async def lines(self, **changes):
        told = self.told
        found = await public_events.read(told.request, documents.manifest(), told, told)
        judgement, _ = await verdicts.lines(found, told, changes.get("holder", self.holder))
        return [*work.lines(found), *judgement, *payments.lines(found, "bcrt")]


@pytest.fixture
def trail():
    return Trail()


def whole(trail):
    trail.certify()
    trail.judge()
    trail.told.judged(trail.fail())
    trail.holder.settle(trail.fail(), trail.told)


def wrong(lines):
    return [(line.step, line.reason) for line in lines if line.state == "wrong"]


def of(lines, step, state="ok"):
    return [line for line in lines if (line.step, line.state) == (step, state)]


async def test_every_line_of_an_unaltered_trail_holds(trail):
    whole(trail)
    lines = await trail.lines()
    assert wrong(lines) == []
    counts = {step: len(of(lines, step)) for step in ("certificate", "commitment", "draw", "verdict", "bond")}
    assert counts == {"certificate": 1, "commitment": 6, "draw": 1, "verdict": 6, "bond": 7}
    assert len(of(lines, "payment", "missing")) == 6  # nobody zapped


async def test_what_was_altered_in_a_commitment_is_not_what_was_claimed(trail):
    trail.certify(said=" of something else")
    lines = await trail.lines()
    assert {step for step, _ in wrong(lines)} == {"commitment"}
    assert len(wrong(lines)) == 2
    assert all(CHEAT.public[:8] in line.what for line in of(lines, "commitment", "wrong"))


async def test_a_later_second_root_changes_nothing(trail):
    whole(trail)
    later = trail.told.committed(1, (0, 1), trail.epoch + 1, " of something else")
    trail.told.certified(trail.epoch + 1, [later])
    assert wrong(await trail.lines()) == []


async def test_an_uncertified_commitment_is_missing_not_wrong(trail):
    trail.told.committed(1, (0, 1), trail.epoch)
    lines = await trail.lines()
    assert wrong(lines) == []
    assert len(of(lines, "commitment", "missing")) == 6
    assert len(of(lines, "certificate", "missing")) == 1


async def test_an_unknown_beacon_leaves_open_what_was_drawn(trail):
    trail.certify(partials=False)
    trail.judge()
    lines = await trail.lines()
    assert wrong(lines) == []
    assert len(of(lines, "draw", "missing")) == 1
    assert len(of(lines, "verdict", "missing")) == 5


@pytest.mark.parametrize(
    "change",
    [{"outcome": "fail", "culprit": CHEAT.public}, {"root": "5e" * 32}, {"outcome": "unsure"}],
)
async def test_a_verdict_that_the_oracles_did_not_vote_for_does_not_hold(trail, change):
    trail.certify()
    trail.judge()
    trail.told.judged(trail.told.verdict(1, 1, trail.epoch, **change), votes_for=trail.told.verdict(1, 1, trail.epoch))
    lines = await trail.lines()
    assert [step for step, _ in wrong(lines)] == ["verdict"]
    assert "does not hold" in wrong(lines)[0][1]


async def test_who_alters_a_copy_of_a_certificate_harms_no_audit(trail):
    whole(trail)
    trail.told.judged(trail.told.verdict(1, 1, trail.epoch), votes_for=trail.fail())
    assert wrong(await trail.lines()) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"root": "5e" * 32}, "another root"),
        ({"verifiers": ((STRANGER.public, True),)}, "was not drawn to verify"),
        ({"outcome": "pass", "culprit": "", "price_msat": 9}, "counts as 9 msat, the plan's price is 1000 msat"),
    ],
)
async def test_a_verdict_on_something_else_than_the_draw_is_wrong_however_many_voted(trail, change, reason):
    trail.certify()
    trail.judge()
    trail.told.judged(trail.fail(**change))
    ((step, said),) = wrong(await trail.lines())
    assert step == "verdict" and reason in said


async def test_two_certified_verdicts_on_one_sample_are_wrong(trail):
    whole(trail)
    trail.told.judged(trail.told.verdict(1, 1, trail.epoch))
    assert ("verdict", "two different verdicts are certified") in wrong(await trail.lines())


async def test_a_verdict_on_what_was_not_drawn_is_wrong(trail):
    whole(trail)
    trail.told.judged(trail.told.verdict(0, 7, trail.epoch))
    ((step, reason),) = wrong(await trail.lines())
    assert step == "verdict" and "not drawn" in reason


async def test_without_a_verdict_nothing_is_wrong(trail):
    trail.certify()
    trail.judge()
    lines = await trail.lines()
    assert wrong(lines) == []
    assert len(of(lines, "verdict", "missing")) == 1


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (lambda given: {**given, STRANGER.public: 1_000}, "no part in this verdict"),
        (lambda given: {**given, CHEAT.public: 1_000}, "no part in this verdict"),
        (lambda given: {payee: msat + (payee != CUSTOMER.public) for payee, msat in given.items()}, "not 1000"),
    ],
)
async def test_a_bond_that_pays_somebody_else_or_another_amount_is_wrong(trail, given, reason):
    whole(trail)
    key = trail.fail().key
    trail.holder.cases[key] = replace(trail.holder.cases[key], payouts=given(trail.holder.cases[key].payouts))
    ((step, said),) = wrong(await trail.lines())
    assert step == "bond" and reason in said


async def test_a_convict_whose_bond_is_not_slashed_is_wrong(trail):
    whole(trail)
    trail.holder.bond_state = "locked"
    ((step, reason),) = wrong(await trail.lines())
    assert step == "bond" and "locked" in reason


async def test_a_holder_that_settled_another_verdict_is_wrong(trail):
    whole(trail)
    key = trail.fail().key
    trail.holder.cases[key] = replace(trail.holder.cases[key], outcome="pass", culprit="", slashes=False, payouts={})
    assert [step for step, _ in wrong(await trail.lines())] == ["bond"]


async def test_a_verdict_that_nobody_presented_is_missing(trail):
    whole(trail)
    trail.holder.cases.clear()
    lines = await trail.lines()
    assert wrong(lines) == []
    assert len(of(lines, "bond", "missing")) == 6


async def test_shares_that_did_not_come_are_missing(trail):
    whole(trail)
    assert len(of(await trail.lines(), "share")) == 1
    trail.holder.came_msat = 450
    lines = await trail.lines()
    assert (len(of(lines, "share", "missing")), wrong(lines)) == (1, [])


async def test_a_claim_above_the_plans_price_is_wrong(trail):
    trail.told.claimed(0, 2, amount_msat=1_001)
    ((step, reason),) = wrong(await trail.lines())
    assert step == "payment" and "1 times 1000" in reason


async def test_a_nutzap_is_seen_and_is_only_its_customers_word(trail):
    trail.told.nutzap(0, 0, 1)
    trail.told.nutzap(1, 0, 1, author=STRANGER)  # a copy: its nonces are the customer's
    whole(trail)
    lines = await trail.lines()
    assert wrong(lines) == []
    missing = [line.reason for line in of(lines, "payment", "missing")]
    assert len(missing) == 6 and sum("its mint alone" in reason for reason in missing) == 1
    trail.told.nutzap(0, 0, 1, salt="6b" * 32)
    assert ("payment", "paid twice") in wrong(await trail.lines())


async def test_receipts_and_closings_are_checked_against_claims_and_certificates(trail, tmp_path):
    whole(trail)
    book = Ledger(tmp_path / "ledger.db")
    for number in range(3):
        for chunk in (0, 1):
            trail.told.pay(book, number, chunk)
    refunds = Refunds(CUSTOMER, trail.told, trail.told, trail.holder)
    await Closings(CUSTOMER, book, trail.told, trail.told, "bcrt", set(), refunds).close(trail.told.request.id)
    lines = await trail.lines()
    assert wrong(lines) == []
    assert len(of(lines, "receipt")) == 3
    closing = next(e for e in trail.told.events if e.kind == kinds.RECEIPT and receipt.is_closing(e))
    said = receipt.parse_closing(closing)
    trail.told.events.remove(closing)
    lied = said.model_copy(
        update={"final": (said.final[0].model_copy(update={"epoch": trail.epoch + 1}), said.final[1])}
    )
    trail.told.events.append(receipt.build_closing(CUSTOMER, lied, created_at=5))
    assert [step for step, _ in wrong(await trail.lines())] == ["receipt"]
    found = await public_events.read(trail.told.request, documents.manifest(), trail.told, trail.told)
    assert {line.state for line in payments.ledger(found, book.debts_of(trail.told.request.id))} == {"ok"}
    book.close()


@pytest.mark.parametrize(("after", "contradicts"), [(3, True), (4, False)])
async def test_a_certificate_after_a_closings_time_makes_a_root_final_and_no_closing_wrong(
    trail, tmp_path, after, contradicts
):
    told, claimed = trail.told, trail.told.epoch_at(trail.told.began_s + 2)
    told.certified(trail.epoch, [told.committed(number, (0,), trail.epoch) for number in range(3)])
    book = Ledger(tmp_path / "ledger.db")
    for number in range(3):
        for chunk in (0, 1):
            told.pay(book, number, chunk)
    refunds = Refunds(CUSTOMER, told, told, trail.holder)
    await Closings(CUSTOMER, book, told, told, "bcrt", set(), refunds).close(told.request.id)
    book.close()
    told.certified(claimed + after, [told.committed(1, (1,), claimed + after)])
    lines = await trail.lines()
    assert [step for step, _ in wrong(lines)] == (["receipt"] if contradicts else [])
    assert len(of(lines, "commitment")) == 4


async def test_what_strangers_publish_about_a_job_means_nothing(trail):
    whole(trail)
    about = [["e", trail.told.request.id]]
    for kind in (kinds.FEEDBACK, kinds.CERTIFICATE, kinds.RECEIPT, 9735):
        trail.told.events.append(events.sign(STRANGER, kind, created_at=5, tags=about, content="nonsense"))
    assert wrong(await trail.lines()) == []


async def test_a_claim_that_nothing_certified_stands_behind_is_told_and_checked(trail):
    told = trail.told
    told.certified(trail.epoch, [told.committed(number, (0, 1), trail.epoch) for number in (0, 2)])
    claim = next(e for e in told.events if e.pubkey == CHEAT.public and e.kind == kinds.FEEDBACK)
    due = feedback.parse(claim).due
    fields = {"outcome": "withheld", "claimed": claim.id, "claimed_msat": due.amount_msat, "root": due.root}
    said = told.verdict(1, due.chunk, trail.epoch + 8, **fields)
    told.judged(said)
    trail.holder.settle(said, told)
    lines = await trail.lines()
    assert any("withheld" in line.reason and CHEAT.public[:8] in line.what for line in of(lines, "verdict"))
    assert wrong(lines) == []

    told.certified(trail.epoch + 1, [told.committed(1, (0, 1), trail.epoch + 1)])
    assert ("verdict", f"its roots were certified in epoch {trail.epoch + 1}") in wrong(await trail.lines())
