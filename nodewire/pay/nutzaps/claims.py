"""A provider's nutzaps at one mint: each is on disk before its ecash is swapped, and is booked once.

Whoever has the purse's file and the key has the money. A crash between any two steps loses nothing: a swap that is on
disk is made again or restored (NUT-09), and the till knows a payment by its hash.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from nodewire.core.budget import Budget
from nodewire.errors import BadInput, BadSignature, BadZap, Busy, NotAllowed
from nodewire.nostr import event as nostr_event
from nodewire.nostr.nips import nip61
from nodewire.pay.ecash import blind
from nodewire.pay.ecash.mint import MintRefused
from nodewire.pay.ecash.nutzap_book import ReceivedNutzap
from nodewire.pay.ecash.proofs import blanks, parse_proof, signed_inputs
from nodewire.pay.lightning import invoices
from nodewire.pay.nutzaps import authorship

if TYPE_CHECKING:
    from collections.abc import Callable

    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.nips.nip61 import Nutzap, NutzapInfo
    from nodewire.pay.ecash.mint import Mint
    from nodewire.pay.ecash.proofs import Proof
    from nodewire.pay.ecash.purse import Operation, Purse

UNBOUND_S = 600
"""So long a nutzap waits whose author is nobody's word. The one that it was copied from is claimed meanwhile."""
MAX_WAITING = 256
"""Nutzaps of strangers that are kept until they are claimed."""
STRANGERS_PER_S, STRANGERS_BURST = 4.0, 256.0
"""Nutzaps of strangers that are looked at: one of 32 proofs takes milliseconds in which nothing else is done."""
MAX_TRIES = 10
_AGAIN_S = 30
_LISTED_S = 5.0
"""A mint is asked for its keysets no more often than that."""
log = logging.getLogger("nodewire.pay")


@dataclass(frozen=True, slots=True)
class ClaimedNutzap:
    """A nutzap whose ecash is the purse's. `sender` is empty where its author is nobody's word."""

    nutzap: Nutzap
    sender: str
    payment_hash: str
    preimage: str
    amount_msat: int
    at_s: int


class NutzapClaims:
    """Claims what comes to the author of `info` at `mint`, by the key of `lock`, into `purse`."""

    def __init__(
        self, info: NutzapInfo, mint: Mint, purse: Purse, lock: Keys, now_s: Callable[[], float] = time.time
    ) -> None:
        self._info, self._mint, self._purse, self._lock, self._now_s = info, mint, purse, lock, now_s
        self._listed, self._listed_at = frozenset[str](), -_LISTED_S
        self._turns = asyncio.Lock()
        self._strangers = Budget(STRANGERS_PER_S, STRANGERS_BURST, time.monotonic)

    @property
    def url(self) -> str:
        """The mint's, as the info names it."""
        return self._mint.url

    @property
    def id(self) -> str:
        """The purse's, for good."""
        return f"cashu:{self._purse.named('id', os.urandom(16).hex())}"

    def enter(self, event: Event, *, is_known: Callable[[str], bool]) -> ReceivedNutzap | None:
        """Write a nutzap down, if it is one that may be claimed; None if it is here already.

        `is_known`: whether a sender is a customer, whose nutzaps are never too many.

        Raises:
            BadZap: it breaks a clause, or a nutzap brought one of its proofs before.
            Busy: too many of strangers wait, or come. Relays keep it.

        """
        book = self._purse.nutzaps
        if book.find(event.id) is not None:
            return None
        if not is_known(event.pubkey):  # before any work is done for it
            self._check_room()
            if not self._strangers.spend("all"):
                raise Busy("nutzaps", "too many of strangers come")
        nutzap = nip61.parse(event)
        nip61.check(nutzap, self._info)
        is_bound = authorship.is_bound(nutzap)
        if book.has_any(blind.hash_to_curve(one.secret.encode()) for one in nutzap.proofs):
            raise BadZap("proof", "another nutzap brought it before")
        if not (is_bound and is_known(nutzap.sender)):
            self._check_room()
        from_s = int(self._now_s()) + (0 if is_bound else UNBOUND_S)
        one = ReceivedNutzap(event.id, event.to_json(), is_bound, "waiting", from_s)
        with self._purse.transaction():
            book.enter(one)
        return one

    def _check_room(self) -> None:
        if self._purse.nutzaps.count_waiting() >= MAX_WAITING:
            raise Busy("nutzaps", "too many of strangers wait")

    async def claim(self, id_: str) -> None:
        """Swap a waiting nutzap's proofs for ecash of the purse's own. What it became stands in the book.

        Raises:
            LinkLost, TimedOut: the mint does not answer. It stays as it is.

        """
        async with self._turns:
            one = self._purse.nutzaps.find(id_)
            if one is None or one.state != "waiting":
                return
            if held := self._purse.operations("claim", id_):
                await self._swap(held[0])
                return
            try:
                proofs = await self._proofs(nip61.parse(nostr_event.parse(one.event)))
                came_sat = sum(each.amount_sat for each in proofs) - await self._mint.fee_sat(proofs)
                if came_sat <= 0:
                    raise BadZap("proof", "the mint's fee takes all of it")
            except (BadInput, NotAllowed) as error:
                self._refuse(id_, str(error))
                return
            except Busy as error:
                self._delay(one, str(error))
                return
            keyset = await self._mint.active()
            try:
                with self._purse.transaction():
                    self._purse.nutzaps.hold(id_, [each.y for each in proofs])
                    number = self._purse.begin_claim(proofs, blanks(came_sat, keyset.id), id_)
            except NotAllowed as error:
                self._refuse(id_, str(error))
                return
            await self._swap(self._purse.operation(number))

    async def finish(self) -> None:
        """End the claims that a crash, or a mint that was away, left. Raises LinkLost, TimedOut."""
        async with self._turns:
            for operation in self._purse.operations("claim"):
                await self._swap(operation)

    async def claim_waiting(self, most: int = MAX_WAITING) -> None:
        """Claim those whose time has come. Raises LinkLost, TimedOut."""
        for one in self._purse.nutzaps.waiting(self._now_s(), most):
            await self.claim(one.id)

    def next_s(self) -> int | None:
        """When the next waiting nutzap may be claimed (unix)."""
        return self._purse.nutzaps.next_s()

    def claimed(self) -> list[ClaimedNutzap]:
        """Those that nobody has booked yet, the oldest first."""
        found = []
        for one in self._purse.nutzaps.claimed():
            nutzap = nip61.parse(nostr_event.parse(one.event))
            preimage = authorship.preimage(each.secret for each in nutzap.proofs)
            sender = nutzap.sender if one.is_bound else ""
            payment_hash = invoices.hash_of(preimage)
            found.append(ClaimedNutzap(nutzap, sender, payment_hash, preimage, one.amount_sat * 1_000, one.at_s))
        return found

    def booked(self, id_: str) -> None:
        """The till has it."""
        with self._purse.transaction():
            self._purse.nutzaps.book(id_)

    async def close(self) -> None:
        await self._mint.close()
        self._purse.close()

    async def _proofs(self, nutzap: Nutzap) -> list[Proof]:
        """A nutzap's proofs, each signed by the mint: it proves that itself (NUT-12).

        Raises:
            BadInput, NotAllowed: one is malformed, of no keyset of satoshis, or without a proof that holds.
            Busy: of a keyset that the mint did not list a moment ago.
            LinkLost, TimedOut: the mint does not tell its keys.

        """
        found = []
        for said in nutzap.proofs:
            proof = parse_proof(orjson.loads(said.text))
            if proof.dleq is None:
                raise BadZap("dleq", "a proof without one")
            await self._check_listed(proof.id)
            keys = (await self._mint.keyset(proof.id)).keys
            if proof.amount_sat not in keys:
                raise BadZap("proof", "of an amount that the mint has no key for")
            e, s, r = proof.dleq
            blind.check_proof(proof.secret.encode(), proof.c, r, keys[proof.amount_sat], e, s)
            found.append(proof)
        return found

    async def _check_listed(self, keyset: str) -> None:
        """Raises Busy: the mint did not list it a moment ago. So whoever names others costs it no more."""
        clock = asyncio.get_running_loop().time
        if keyset not in self._listed and clock() >= self._listed_at + _LISTED_S:
            self._listed, self._listed_at = await self._mint.listed(), clock()
        if keyset not in self._listed:
            raise Busy("proof", "its keyset is not listed by the mint: it is asked again")

    async def _swap(self, asked: Operation) -> None:
        """Make a swap that is on disk, or find what came of it."""
        try:
            came = await self._mint.swap(signed_inputs(self._lock, asked.inputs), asked.outputs)
        except MintRefused as error:
            try:
                came = await self._mint.restored(asked.outputs)
            except BadSignature as fault:
                self._complain(asked, fault)
                return
            if not came:
                self._put_back(asked, error)
                return
        except BadSignature as error:
            self._complain(asked, error)
            return
        amount_sat, at_s = sum(one.amount_sat for one in came), int(self._now_s())
        with self._purse.transaction():
            if self._purse.end(asked.number, came):
                self._purse.nutzaps.claim(asked.quote, amount_sat, at_s)

    def _complain(self, asked: Operation, error: BadSignature) -> None:
        """The mint's signatures are none. The swap stays on disk, and is asked for again."""
        log.error("mint %s took ecash, and gave what is none: %s", self._mint.url, error)
        if (one := self._purse.nutzaps.find(asked.quote)) is not None:
            self._delay(one, str(error))

    def _put_back(self, asked: Operation, error: MintRefused) -> None:
        """The mint swapped nothing: it was spent before, or it is tried again later."""
        with self._purse.transaction():
            self._purse.end(asked.number, [])
        one = self._purse.nutzaps.find(asked.quote)
        if one is None or error.is_spent:
            self._refuse(asked.quote, f"the mint {error.reason}")
        else:
            self._delay(one, f"the mint {error.reason}")

    def _delay(self, one: ReceivedNutzap, reason: str) -> None:
        """Try it again later, or never if that was often enough."""
        if one.tries >= MAX_TRIES:
            self._refuse(one.id, reason)
            return
        log.info("nutzap %s is not claimed yet: %s", one.id[:8], ascii(reason))
        with self._purse.transaction():
            self._purse.nutzaps.delay(one.id, int(self._now_s()) + (_AGAIN_S << one.tries), reason)

    def _refuse(self, id_: str, reason: str) -> None:
        log.info("nutzap %s is refused: %s", id_[:8], ascii(reason))
        with self._purse.transaction():
            self._purse.nutzaps.refuse(id_, reason)
