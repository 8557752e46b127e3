"""Whether a mint enforces the locks of ecash: tried with one satoshi, before a bond is locked there.

The satoshi is locked as a bond is, to three of four keys that the prober has; with it goes what the mint takes for a
spend. Every spend that must be refused is tried, then the right one, which gives the satoshi back. It shows what the
mint does today: it stays a custodian.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from nodewire.errors import NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.pay.ecash.mint import Mint, MintRefused
from nodewire.pay.ecash.proofs import BlankOutput, Lock, Proof, blanks, loose_digest, sig_all_digest, witness

if TYPE_CHECKING:
    from collections.abc import Sequence

_FAR_S = 4_000_000_000
QUORUM, KEYS = 3, 4


class LockProbe:
    """`lock` says how the satoshi must be locked, `run` what the mint makes of it."""

    def __init__(self, mint: Mint) -> None:
        self._mint = mint
        self._signers = [Keys(os.urandom(32)) for _ in range(KEYS)]
        self._refund = Keys(os.urandom(32))
        signers = tuple(one.public for one in self._signers)
        self.lock = Lock(signers, QUORUM, self._refund.public, _FAR_S)

    async def amount_sat(self) -> int:
        """What is to be locked: one piece of ecash, of which the mint's fee leaves a satoshi or more."""
        return 1 << (-(-(await self._mint.active()).fee_ppk // 1_000)).bit_length()

    async def run(self, satoshi: Proof) -> list[Proof]:
        """The satoshi again, unlocked.

        Raises:
            NotAllowed: the mint does not enforce the lock, and how; what the prober had may be gone.

        """
        self.lock.check(satoshi.secret)
        left_sat, keyset = satoshi.amount_sat - await self._mint.fee_sat([satoshi]), (await self._mint.active()).id
        back, other = blanks(left_sat, keyset), blanks(left_sat, keyset)
        right = sig_all_digest([satoshi], back)
        few = self._signed(right, self._signers[: QUORUM - 1])
        enough = self._signed(right, self._signers[:QUORUM])
        each = hashlib.sha256(satoshi.secret.encode()).digest()
        for what, signatures, outputs in (
            ("without a signature", [], other),
            (f"by {QUORUM - 1} of {QUORUM} signatures", few, back),
            ("by one signature many times", [*few, few[0], few[1]], back),
            ("to other outputs than the signed ones", enough, other),
            ("by signatures of the input alone", self._signed(each, self._signers[:QUORUM]), other),
            ("by signatures that leave the amounts open", self._loose(satoshi, other), other),
            ("to the one that gets it back later", [self._refund.sign(right)], back),
        ):
            if await self._spends(satoshi, signatures, outputs):
                raise NotAllowed("mint", f"{self._mint.url} spends locked ecash {what}: lock no bond there")
        try:
            return await self._mint.swap([satoshi.as_input(witness(enough))], back)
        except MintRefused as error:
            raise NotAllowed("mint", f"{self._mint.url} refuses {QUORUM} right signatures ({error.reason})") from error

    def _signed(self, digest: bytes, signers: Sequence[Keys]) -> list[bytes]:
        return [one.sign(digest) for one in signers]

    def _loose(self, satoshi: Proof, outputs: Sequence[BlankOutput]) -> list[bytes]:
        return self._signed(loose_digest([satoshi], outputs), self._signers[:QUORUM])

    async def _spends(self, satoshi: Proof, signatures: Sequence[bytes], outputs: Sequence[BlankOutput]) -> bool:
        try:
            await self._mint.swap([satoshi.as_input(witness(signatures))], outputs)
        except MintRefused:
            return False
        return True
