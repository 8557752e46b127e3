"""The data plane: links between Nostr identities, frames of tensors on them, and one job's mailbox over them."""

from nodewire.wire.job_channel import JobChannelSpec
from nodewire.wire.link import Link, Patience
from nodewire.wire.mailbox import JobMailbox, Route
from nodewire.wire.node import Node
from nodewire.wire.spool import Spool

__all__ = ["JobChannelSpec", "JobMailbox", "Link", "Node", "Patience", "Route", "Spool"]
