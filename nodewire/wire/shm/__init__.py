"""Links between processes of one host: frames go through memory that both have mapped, not through TLS."""

from nodewire.wire.shm.discovery import SameHost

__all__ = ["SameHost"]
