"""Nostr: events, keys, filters, encryption and relays; one file per NIP. Knows nothing of nodewire's own kinds."""
