"""The optional libraries of the package, and the extras that bring them."""

from __future__ import annotations

from importlib.util import find_spec

from nodewire.errors import BadConfig

EXTRA_OF = {
    "torch": "worker",
    "safetensors": "worker",
    "transformers": "register",
    "gguf": "register",
    "llguidance": "json",
    "highspy": "place",
    "matplotlib": "plot",
    "onnx": "fast",
    "onnxruntime": "fast",
}
"""By library, the extra that names it."""


def not_installed(library: str) -> BadConfig | None:
    """The error of an optional library that is not installed; None for a library that no extra brings."""
    extra = EXTRA_OF.get(library)
    if extra is None:
        return None
    return BadConfig(library, f"not installed, and needed here: {how_to_install(extra)}")


def how_to_install(extra: str) -> str:
    """The command that installs an extra: nodewire is in no package index."""
    return f"in nodewire's folder run `.venv/bin/pip install '.[{extra}]'`"


def check(library: str) -> None:
    """Raises BadConfig: an optional library is not installed. It is not imported for that."""
    if find_spec(library) is None and (error := not_installed(library)) is not None:
        raise error
