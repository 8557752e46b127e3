"""Keeps the book of quorum-locked bonds: checks coins, signs statements, settles verdicts, and has bonds closed.

It holds no coins. A registrar that lies can give a provider weight for nothing, or let one go without a verdict that no
oracle knows of. It cannot take a coin: an oracle signs what follows from certified verdicts alone (`cosigner`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadInput, BadSignature, NodewireError, NoQuorum, NotAllowed, NotFound
from nodewire.nostr.event import Event
from nodewire.nostr.event import parse as parse_event
from nodewire.nostr.keys import Keys
from nodewire.nostr.keys import verify as verify_signature
from nodewire.pay.bond import bonds, settlement
from nodewire.pay.bond.quorum.custody import Closing, ClosingSpoilt, Coin, Custody
from nodewire.pay.bond.quorum.terms import (
    CLOSING_S,
    MAX_COINS,
    SAT_MSAT,
    BondTerms,
    Evidence,
    Payment,
    check_terms,
    closing,
    delay_s,
    judged,
)
from nodewire.pay.bond.quorum.treasury import QuorumTreasury
from nodewire.protocol.job import request as job
from nodewire.protocol.market import bond as statements
from nodewire.protocol.verification import verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nodewire.pay.bond.bonds import Bond
    from nodewire.pay.bond.quorum.book import Book, Deposit
    from nodewire.pay.bond.quorum.treasury import Cashier
    from nodewire.protocol.committee.committee import Committee

STATEMENT_S = 3_600
MAX_LOCK_S = 5 * 366 * 86_400
CAP_SAT = 1_000_000
"""Of ecash: what all bonds at one mint may come to, unless the registrar says another."""
_SWEEP_S = 5.0
_log = logging.getLogger("nodewire.pay.registrar")


@dataclass(frozen=True, slots=True)
class RegistrarRules:
    """`cap_sat`: all bonds together; 0 for no cap. Times in seconds."""

    statement_s: int = STATEMENT_S
    closing_s: int = CLOSING_S
    cap_sat: int = 0


class Registrar:
    """For one committee and one custody. `await run()` until cancelled."""

    def __init__(
        self,
        keys: Keys,
        committee: Committee,
        custody: Custody,
        book: Book,
        rules: RegistrarRules | None = None,
        *,
        cashier: Cashier | None = None,
        time_s: Callable[[], float] = time.time,
    ) -> None:
        if keys.public not in committee.bond_holders:
            raise BadInput("committee", f"does not list {keys.public} in bond_holders: its statements would not count")
        if committee.verify_share_ppm and cashier is None:
            reason = f"{committee.verify_share_ppm}, and a registrar without a wallet takes no shares: name one"
            raise BadInput("verify_share_ppm", f"{reason} with --treasury, or found the committee with 0")
        self._keys, self.committee, self.custody, self._book = keys, committee, custody, book
        self.rules = rules or RegistrarRules(cap_sat=CAP_SAT if custody.custodian else 0)
        self.delay_s, self._time_s = delay_s(committee), time_s
        self.treasury: QuorumTreasury | None = None
        """Where there is a cashier."""
        if cashier is not None:
            self.treasury = QuorumTreasury(keys.public, committee, book, cashier, self.delay_s, time_s=time_s)
        self._closes = asyncio.Lock()
        self._locks = asyncio.Lock()

    @property
    def public(self) -> str:
        return self._keys.public

    async def run(self) -> None:
        while True:
            await self.sweep()
            await asyncio.sleep(_SWEEP_S)

    def close(self) -> None:
        """Close its book."""
        self._book.close()

    # Bonds

    async def lock(self, signer: str, terms: BondTerms, coins: Sequence[Coin]) -> Deposit:
        """Enter a bond whose coins are locked already; again is no error.

        Raises:
            BadInput, BadQuorum, NotFound: terms or coins are not what they must be.
            NotAllowed: the provider has a bond or was convicted, or the cap is reached.

        """
        if signer != terms.provider:
            raise NotAllowed("provider", "the request is signed by another key")
        check_terms(terms, self.committee, closing_s=self.rules.closing_s)
        async with self._locks:
            newest = self._book.newest(terms.provider)
            if newest is not None and newest.bond.id == terms.id:
                return newest
            now_s = self._now_s()
            if not 0 < terms.until_s - now_s <= MAX_LOCK_S:
                raise BadInput("until_s", f"not within the next {MAX_LOCK_S} s")
            self._check_new(newest)
            sat = await self._worth_sat(terms, coins)
            with self._book.transaction():
                self._book.lock(terms, sat, {self.custody.key_of(coin): coin for coin in coins})
                return self._book.deposit(terms.id)

    def _check_new(self, newest: Deposit | None) -> None:
        if newest is None or newest.bond.state == "released":
            return
        if newest.bond.state in ("slashed", "burnt"):
            raise NotAllowed("provider", "convicted; its key gets no new bond")
        raise NotAllowed("provider", f"it has a bond that is {newest.bond.state}; one at a time, which can be raised")

    async def top_up(self, signer: str, key: str, coins: Sequence[Coin]) -> Deposit:
        """More coins by the same terms; `key` names the request. Raises as `lock`, and NotFound."""
        async with self._locks:
            deposit = self.deposit(signer)
            if any(one.key == key for one in deposit.bond.raises):
                return deposit
            if len(deposit.coins) + len(coins) > MAX_COINS:
                raise BadInput("coins", f"more than {MAX_COINS} in all; release this bond and lock another")
            sat = await self._worth_sat(deposit.terms, coins, deposit.coins)
            with self._book.transaction():
                self._book.step(deposit.bond.id, bonds.Raise(key, sat * SAT_MSAT, deposit.bond.until_s))
                self._book.add_coins(deposit.bond.id, {self.custody.key_of(coin): coin for coin in coins})
                return self._book.deposit(deposit.bond.id)

    async def _worth_sat(self, terms: BondTerms, coins: Sequence[Coin], before: Sequence[Coin] = ()) -> int:
        """What new coins are worth beside those `before`. Raises as `lock`."""
        sat = await self.custody.worth_sat(terms, coins)
        if sat < 4 * self.custody.least_sat:
            raise BadInput("coins", f"{sat} sat; a bond here has at least {4 * self.custody.least_sat} sat")
        whole = {self.custody.key_of(coin): coin for coin in (*before, *coins)}
        await self.custody.check_size(terms, [*whole.values()])
        there_sat = sum(one.bond.amount_msat for one in self._book.liable()) // SAT_MSAT
        if self.rules.cap_sat and there_sat + sat > self.rules.cap_sat:
            left_sat = max(0, self.rules.cap_sat - there_sat)
            most = f"all bonds at {self.custody.place} may come to {self.rules.cap_sat} sat"
            raise NotAllowed("cap", f"{most}; {left_sat} sat are free")
        return sat

    def deposit(self, provider: str) -> Deposit:
        """The provider's newest bond. Raises NotFound."""
        found = self._book.newest(provider)
        if found is None:
            raise NotFound("provider", "it never had a bond here")
        if found.bond.state == "locked" and found.bond.until_s <= self._now_s():
            with self._book.transaction():
                self._book.step(found.bond.id, bonds.Unbond(found.bond.until_s, self.delay_s))
                return self._book.deposit(found.bond.id)
        return found

    async def statement(self, provider: str) -> Event:
        """The signed statement (kind 8858); a new one when half its time is over, or when the amount has changed.

        The coins are looked at for each new one.

        Raises:
            NotFound: it never had a bond, or the coins are gone.
            NotAllowed: the bond is no longer locked.

        """
        deposit, now_s = self.deposit(provider), self._now_s()
        bond = deposit.bond
        if bond.state != "locked":
            raise NotAllowed("bond", f"it is {bond.state}; nothing is stated of it any more")
        if deposit.statement:
            event = parse_event(deposit.statement)
            said = statements.parse(event)
            half_s = min(self.rules.statement_s // 2, bond.until_s - said.expires_at_s)
            if said.amount_msat == bond.remainder_msat and said.expires_at_s - now_s > half_s:
                return event
        await self.custody.worth_sat(deposit.terms, deposit.coins)
        expires_at_s = min(bond.until_s, now_s + self.rules.statement_s)
        with self._book.transaction():
            bond = self._book.deposit(bond.id).bond
            event = statements.build(
                self._keys, provider, bond.remainder_msat, expires_at_s=expires_at_s, created_at=now_s
            )
            self._book.step(bond.id, bonds.HolderStatement(max(expires_at_s, bond.stated_until_s)))
            self._book.state(bond.id, event.to_json())
        return event

    def release(self, provider: str) -> Deposit:
        """Ask for the bond back. Raises NotFound, NotAllowed (slashed)."""
        deposit = self.deposit(provider)
        with self._book.transaction():
            self._book.step(deposit.bond.id, bonds.Unbond(self._now_s(), self.delay_s))
            return self._book.deposit(deposit.bond.id)

    # Verdicts

    def present(self, certificate: Event, request: Event) -> dict[str, Any]:
        """Settle a certified verdict. Presented again, the first settlement stands.

        Raises:
            BadQuorum, BadInput: the certificate does not hold, or the request is not its job's.
            NotAllowed: another verdict on the same sample was settled before.

        """
        certified = verdict.parse(certificate)
        certified.check(self.committee)
        finding = settlement.find(certified.verdict, job.parse(request), self.committee)
        try:
            digest, known = self._book.case(finding.case)
        except NotFound:
            pass
        else:
            if digest != finding.digest:
                raise NotAllowed("case", "another verdict on it stands")
            return self._with_dues(known)
        evidence, now_s = Evidence(certificate, request), self._now_s()
        touched, refused = "", ""
        payouts: dict[str, int] = {}
        with self._book.transaction():
            for who in dict.fromkeys((*((finding.culprit,) if finding.culprit else ()), *finding.accomplices)):
                deposit = self._book.newest(who)
                if deposit is None or not deposit.bond.is_liable or self._is_closed(deposit.bond):
                    if who == finding.culprit:
                        refused = "it never had a bond here" if deposit is None else f"its bond is {deposit.bond.state}"
                    continue
                event = judged(evidence, deposit.bond, self.committee, now_s)
                if event is None:
                    continue
                self._book.step(deposit.bond.id, event)
                self._book.touch(deposit.bond, finding.case)
                if who == finding.culprit and isinstance(event, bonds.Refund | bonds.Slash):
                    touched, payouts = deposit.bond.id, {one.payee: one.amount_msat for one in event.payouts}
            settled = {
                "case": finding.case,
                "request": finding.request,
                "outcome": finding.outcome,
                "culprit": finding.culprit,
                "slashes": finding.slashes,
                "bond": touched,
                "payouts": payouts,
                "refused": refused,
                "due": payouts,
            }
            self._book.settle(finding.case, finding.digest, settled, evidence)
            if self.treasury is not None:
                self.treasury.price(finding, payouts)
        if refused:
            _log.warning("the verdict on sample %s reached no bond: %s", finding.case[:8], refused)
        return self._with_dues(settled)

    def _with_dues(self, settled: dict[str, Any]) -> dict[str, Any]:
        """A settled verdict, with what the treasury still gives by it."""
        given = self.treasury.dues_of(settled["case"]) if self.treasury is not None else {}
        return {**settled, "due": {**settled["due"], **given}}

    def _is_closed(self, bond: Bond) -> bool:
        """Whether oracles may have signed its closing: a verdict that comes then finds what is decided."""
        return bond.state in ("unbonding", "slashed") and bond.frees_at_s <= self._now_s()

    def case(self, case: str) -> dict[str, Any]:
        """Raises NotFound."""
        return self._with_dues(self._book.case(case)[1])

    # Closings

    async def sweep(self) -> None:
        """Take the steps that time brings: bonds end, closings are proposed, and executed when they can be.

        Pots close, and payouts that were on their way are settled.
        """
        if self.treasury is not None:
            await self.treasury.sweep()
        for deposit in self._book.liable():
            try:
                found = self.deposit(deposit.terms.provider) if deposit.bond.state == "locked" else deposit
                if found.bond.id == deposit.bond.id and self._is_closed(found.bond):
                    await self._close(found)
            except NoQuorum:
                continue
            except NodewireError as error:
                _log.warning("bond %s is not closed yet: %s", deposit.bond.id[:8], error)

    async def _close(self, deposit: Deposit) -> None:
        async with self._closes:
            proposed = await self._proposed(deposit)
            try:
                left = await self.custody.execute(proposed, self._book.signatures(deposit.bond.id))
            except ClosingSpoilt:
                await self._propose(deposit)
                raise
            except (NoQuorum, NotFound):
                # Before its own time the provider cannot have taken them: node or mint is behind, or oracles are.
                if self._now_s() < deposit.terms.refund_at_s or await self._is_there(deposit):
                    raise
                left = {"refunded": True}
            with self._book.transaction():
                self._book.executed(deposit.bond.id, left)
                self._book.step(deposit.bond.id, bonds.Free(self._now_s()))

    async def _is_there(self, deposit: Deposit) -> bool:
        try:
            await self.custody.worth_sat(deposit.terms, deposit.coins)
        except NotFound:
            return False
        return True

    async def _proposed(self, deposit: Deposit) -> Closing:
        bond = deposit.bond
        try:
            said, _ = self._book.closing(bond.id)
        except NotFound:
            said = await self._propose(deposit)
        payments = closing(bond, said["fee_sat"], self.custody.least_sat)
        return Closing(deposit.terms, deposit.coins, tuple(payments), said["fee_sat"], said["means"])

    async def _propose(self, deposit: Deposit) -> dict[str, Any]:
        """A new proposal, in place of the one before."""
        count = len({one.payee for one in deposit.bond.payouts}) + 2
        fee_sat, means = await self.custody.propose(deposit.terms, deposit.coins, count)
        said = {"fee_sat": fee_sat, "means": dict(means)}
        with self._book.transaction():
            self._book.propose(deposit.bond.id, said)
        return said

    async def open_closings(self) -> list[dict[str, Any]]:
        """What oracles are asked to sign, with all that they need to check it."""
        await self.sweep()
        due = [deposit for deposit in self._book.liable() if self._is_closed(deposit.bond)]
        return [self._told(deposit, await self._proposed(deposit)) for deposit in due]

    def _told(self, deposit: Deposit, proposed: Closing) -> dict[str, Any]:
        evidence = self._book.evidence(deposit.bond.id)
        return {
            "terms": deposit.terms.model_dump(mode="json"),
            "coins": list(deposit.coins),
            "verdicts": [[one.certificate.as_dict(), one.request.as_dict(), sat] for one, sat in evidence],
            "fee_sat": proposed.fee_sat,
            "means": dict(proposed.means),
            "signed_by": sorted(self._book.signatures(deposit.bond.id)),
        }

    async def cosign(self, oracle: str, bond: str, signatures: Sequence[bytes]) -> None:
        """An oracle's signatures of the bond's closing.

        Raises:
            NotFound: no such closing.
            BadSignature: not this oracle's, or of something else.

        """
        deposit = self._book.deposit(bond)
        if not self._is_closed(deposit.bond) or not deposit.bond.is_liable:
            raise NotFound("closing", "the bond's time is not over, or it is closed")
        digests = await self.custody.digests(await self._proposed(deposit))
        if oracle not in deposit.terms.oracles or len(signatures) != len(digests):
            raise BadSignature("signatures", "not one for each digest, or not by an oracle of the bond")
        if not all(verify_signature(oracle, digest, one) for digest, one in zip(digests, signatures, strict=True)):
            raise BadSignature("signatures", "of something else than this closing")
        with self._book.transaction():
            self._book.sign(bond, oracle, signatures)
        await self.sweep()

    def closed(self, bond: str) -> dict[str, Any]:
        """An executed closing: what it paid and what it left. Raises NotFound."""
        deposit = self._book.deposit(bond)
        said, left = self._book.closing(bond)
        if left is None:
            raise NotFound("closing", "2f+1 oracles have not signed it yet")
        before = deposit.bond
        payments: Sequence[Payment] = (
            [] if "refunded" in left else closing(before, said["fee_sat"], self.custody.least_sat)
        )
        return {
            "terms": deposit.terms.model_dump(mode="json"),
            "coins": list(deposit.coins),
            "fee_sat": said["fee_sat"],
            "means": said["means"],
            "payments": [[one.payee, one.amount_sat] for one in payments],
            "left": left,
        }

    def _now_s(self) -> int:
        return int(self._time_s())


def bond_document(deposit: Deposit) -> Mapping[str, Any]:
    """A bond as its statement to anybody."""
    bond = deposit.bond
    return {
        "id": bond.id,
        "provider": bond.provider,
        "amount_msat": bond.amount_msat,
        "remainder_msat": bond.remainder_msat,
        "state": bond.state,
        "until_s": bond.until_s,
        "stated_until_s": bond.stated_until_s,
        "frees_at_s": bond.frees_at_s,
        "cases": [one.case for one in bond.judged],
        "terms": deposit.terms.model_dump(mode="json"),
        "coins": list(deposit.coins),
    }
