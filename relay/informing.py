"""NIP-11: what this relay is and where its limits are.

https://github.com/nostr-protocol/nips/blob/master/11.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.limits import Config

NIPS = (1, 9, 11, 40, 42, 45, 59, 70)
MEDIA_TYPE = "application/nostr+json"
CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Authorization, *",  # the star does not cover Authorization
    "Access-Control-Allow-Methods": "GET, HEAD, PUT, DELETE, OPTIONS",
    "Access-Control-Expose-Headers": "*",
}


def document(config: Config, version: str) -> dict[str, object]:
    """The information document; every limit in it is one that is enforced."""
    limits = config.limits
    about: dict[str, object] = {
        "name": config.name,
        "description": config.description,
        "software": "nodewire",
        "version": version,
        "supported_nips": list(NIPS),
        "limitation": {
            "max_message_length": limits.frame_bytes,
            "max_subscriptions": limits.subscriptions,
            "max_filters": limits.filters,
            "max_limit": limits.query_limit,
            "default_limit": limits.query_limit,
            "max_subid_length": 64,
            "max_event_tags": limits.tags,
            "max_content_length": limits.event_bytes,
            "min_pow_difficulty": 0,
            "auth_required": False,
            "payment_required": False,
            "restricted_writes": False,
            "created_at_upper_limit": limits.future_s,
            # Beyond the NIP: what an address or a key may use.
            "max_connections": limits.connections,
            "max_query_steps": limits.query_steps,
            "max_messages_per_second": limits.messages_per_s,
            "max_address_work_per_second": limits.work_per_s,
            "max_address_bytes_per_day": limits.address_bytes_per_day,
            "max_key_bytes_per_day": limits.key_bytes_per_day,
            "max_key_bytes": limits.key_events_bytes,
        },
    }
    if config.operator:
        about["pubkey"] = config.operator
    return about
