"""Nodewire: a Nostr-native, peer-to-peer marketplace where strangers run pieces of AI models for sats."""
