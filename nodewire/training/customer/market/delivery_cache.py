"""What the journal's results say: each is read, and opened, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nodewire.core.bounded_dict import BoundedDict
from nodewire.nostr import event as events
from nodewire.nostr.nips import nip44
from nodewire.training.protocol import result as delivery
from nodewire.training.protocol.result import Delivery, DeliveryDetails

if TYPE_CHECKING:
    from nodewire.nostr.event import Event
    from nodewire.nostr.keys import Keys

MOST = 64
"""A result has up to 64 KB."""


class _OpenDelivery(NamedTuple):
    delivery: Delivery
    opened: DeliveryDetails | None = None


class Deliveries:
    """Of one customer, the last MOST of them."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._read = BoundedDict[str, _OpenDelivery](MOST)

    def add(self, event: Event) -> str:
        """A result that came, whose signature has been checked, as the journal keeps it. Raises BadEvent, BadTag."""
        result = event.to_json()
        self._keep(result, _OpenDelivery(delivery.parse(event)))
        return result

    def get(self, result: str) -> Delivery:
        """What a result says that was heard."""
        return self._of(result).delivery

    def opened(self, result: str) -> DeliveryDetails:
        """What it tells this customer alone.

        Raises:
            BadCiphertext, BadEvent ...: it is not encrypted to this customer, or not well-formed.

        """
        read = self._of(result)
        if read.opened is None:
            said = nip44.decrypt(read.delivery.ciphertext, nip44.conversation_key(self._keys, read.delivery.provider))
            read = read._replace(opened=DeliveryDetails.parse(said))
            self._keep(result, read)
        assert read.opened is not None
        return read.opened

    def _of(self, result: str) -> _OpenDelivery:
        if result not in self._read:
            self._keep(result, _OpenDelivery(delivery.parse(events.parse(result))))
        return self._read[result]

    def _keep(self, result: str, read: _OpenDelivery) -> None:
        self._read[result] = read
