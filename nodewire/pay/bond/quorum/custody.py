"""What the two ways to lock coins by a quorum have in common: a vault on Bitcoin, and ecash of a mint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from nodewire.errors import PaymentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodewire.nostr.keys import Keys
    from nodewire.pay.bond.quorum.terms import BondTerms, Payment

Coin = dict[str, Any]
"""A coin as its custody writes it, in JSON."""


class ClosingSpoilt(PaymentFailed):
    """A closing that can never be made, of coins that are there: it is proposed anew, by other means."""


@dataclass(frozen=True, slots=True)
class Closing:
    """One spend of all coins of a bond. `means` is what the custody's own rules leave to its proposer, in JSON."""

    terms: BondTerms
    coins: tuple[Coin, ...]
    payments: tuple[Payment, ...]
    fee_sat: int
    means: Mapping[str, Any]


class Custody(Protocol):
    """A way to lock coins. Its methods raise LinkLost or TimedOut where node or mint does not answer."""

    @property
    def kind(self) -> str: ...

    @property
    def least_sat(self) -> int:
        """The least that an output of a closing may have."""

    @property
    def place(self) -> str:
        """Where the coins are, for people and other programs: a network, or a mint's URL."""

    @property
    def custodian(self) -> str:
        """Who could break the lock, in words; empty if nobody could."""

    async def fund(self, terms: BondTerms, amount_sat: int, key: str, held: Sequence[Coin] = ()) -> list[Coin]:
        """Lock so much by the terms, once for each `key`; asked again, the same coins. None of those `held` before.

        Raises:
            NotAllowed: another amount is being locked by this key.
            PaymentFailed: there is too little, or the coins are not there yet.

        """

    async def worth_sat(self, terms: BondTerms, coins: Sequence[Coin]) -> int:
        """What the coins, each locked by these very terms and unspent, are worth.

        Raises:
            BadInput: one is not locked so, or stands twice.
            NotFound: one is spent, or not there yet.

        """

    async def check_size(self, terms: BondTerms, coins: Sequence[Coin]) -> None:
        """Raises BadInput: they are so small that what a closing of them costs would keep it from being made."""

    def key_of(self, coin: Coin) -> str:
        """What names the coin for good. Raises BadInput."""

    async def propose(self, terms: BondTerms, coins: Sequence[Coin], payments: int) -> tuple[int, Mapping[str, Any]]:
        """The fee in satoshis, and the means, of a closing with so many payments that is due now."""

    async def check(self, closing: Closing) -> None:
        """Raises BadInput: fee or means are none that an oracle should sign."""

    async def digests(self, closing: Closing) -> list[bytes]:
        """What an oracle signs: 32 bytes each, which commit to all coins and all payments."""

    async def execute(self, closing: Closing, signatures: Mapping[str, Sequence[bytes]]) -> Mapping[str, Any]:
        """Spend, by the signatures of 2f+1 oracles; again is no error. What it leaves to whom it pays, in JSON.

        Raises:
            NoQuorum: too few signatures.
            NotFound: the coins went another way: the provider took them in its own time.
            ClosingSpoilt: it can never be made by these means.
            PaymentFailed: node or mint refuses, in its words.

        """

    async def refund(self, keys: Keys, terms: BondTerms, coins: Sequence[Coin]) -> tuple[int, str]:
        """The provider takes the coins in its own time: how many satoshis come to it, and what proves it.

        Raises:
            NotAllowed: it is not yet its time.
            NotFound: they are spent.

        """

    async def collect(self, keys: Keys, closing: Closing, left: Mapping[str, Any]) -> tuple[int, str]:
        """The key takes what an executed closing pays it. Again is no error.

        Raises:
            NotFound: it pays this key nothing.

        """

    async def close(self) -> None: ...
