"""The data plane: links between Nostr identities, frames of tensors on them, and one job's mailbox over them."""

from nodewire.wire.evidence.spool import Spool
from nodewire.wire.job.channel_spec import JobChannelSpec
from nodewire.wire.job.mailbox import JobMailbox, Route
from nodewire.wire.link.link import Link, Patience
from nodewire.wire.link.link_manager import LinkPolicy
from nodewire.wire.node import Node

__all__ = ["JobChannelSpec", "JobMailbox", "Link", "LinkPolicy", "Node", "Patience", "Route", "Spool"]
