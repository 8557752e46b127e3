"""The embedded Nostr relay, with a Blossom blob store on the same port; runs alone too: `python -m relay --help`."""

from relay.limits import BlobLimits, Config, Limits
from relay.policing import POLICIES, Policy, Visit
from relay.serving import Relay, serve

__all__ = ["POLICIES", "BlobLimits", "Config", "Limits", "Policy", "Relay", "Visit", "serve"]
