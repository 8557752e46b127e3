"""Chat templates of strangers: found in a checkpoint's folder, and rendered where they can do nothing else."""

from __future__ import annotations

import struct

PREFIX = struct.Struct(">I")
"""Between the daemon and the process that renders: the length of the JSON that follows."""
MAX_REQUEST_BYTES = 8 * 2**20
MAX_PROMPT_CHARS = 1_000_000
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
"""What templates are always given; no variable of a caller's has such a name."""
WALL_S = 2.0
"""In which a request is answered, whatever its template does."""
