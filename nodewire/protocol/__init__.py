"""Nodewire's own events and documents: frozen schemas, pure codecs and checks. NIPS.md leads to their specification."""
