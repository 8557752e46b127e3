"""A configuration as a module without weights: on the meta device, with the values of what is no weight."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nodewire.core.extras import how_to_install
from nodewire.errors import BadConfig, BadInput, NodewireError, Unsupported
from nodewire.graph.families.inputs import ANY, LARGEST, Largest, widened
from nodewire.graph.families.table import ARCHITECTURES, Family

if TYPE_CHECKING:
    from nodewire.graph.trace.examples import Signature

_EXPERTS = "batched_mm"
"""The one implementation of experts that is made of tensors' operators alone."""
MAX_LAYERS, MAX_LABELS = 1_024, 2**17
MAX_BUFFER_BYTES = 2**30
"""Of what a module makes itself and no checkpoint holds: positions, masks, rotations."""
_LAYERS = re.compile(r"(^|_)layers?$|^depths$")
"""Numbers in a config.json of which each is a module to be built."""
_CODE = re.compile(r"_implementation(_internal)?$|^auto_map$|^quantization_config$|kernel_config$")
"""What may name code: `transformers` fetches attention from repositories, and runs it, where this says so."""


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """`buffers` has the values of the module's buffers that are in no checkpoint."""

    module: Any
    buffers: Mapping[str, torch.Tensor]
    called: Signature
    family: Family


def build(config: Mapping[str, Any], largest: Largest = LARGEST, most: Mapping[str, int] | None = None) -> BuiltModel:
    """The module that a config.json describes, in evaluation mode; `most` goes before `largest`, size by size.

    Raises:
        BadConfig: `transformers` is not installed.
        Unsupported: its architecture is not one of the table's.
        BadInput: `transformers` does not take the configuration, or the model no such sizes as `most` has.

    """
    try:
        import transformers
    except ImportError as error:
        raise BadConfig("transformers", f"not installed: {how_to_install('register')}") from error
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    family = ARCHITECTURES.get(name)
    if family is None:
        known = ", ".join(sorted(ARCHITECTURES))
        raise Unsupported("architectures", f"{name[:60]!r} is not one of those cut by their operators: {known}")
    wanted: dict[str, Any] = {"attn_implementation": family.attention} if family.attention else {}
    with taken(), _without_tokens():
        settings = transformers.AutoConfig.for_model(**plain(config))
        cls = getattr(transformers, name)
        if cls._can_set_experts_implementation():
            wanted["experts_implementation"] = _EXPERTS
        with torch.device("meta"):
            module = cls._from_config(settings, **wanted).eval()
        called = family.called(settings, largest)
        if most:
            called = widened(called, most, family.called(settings, ANY).dims)
        return BuiltModel(module, values(module), called, family)


@contextmanager
def _without_tokens() -> Iterator[None]:
    """Without the library's warnings of special tokens outside the vocabulary, which no graph has to do with."""
    log = logging.getLogger("transformers.configuration_utils")

    def others(record: logging.LogRecord) -> bool:
        return "_token_id must be" not in record.getMessage()

    log.addFilter(others)
    try:
        yield
    finally:
        log.removeFilter(others)


@contextmanager
def taken() -> Iterator[None]:
    """Raises BadInput: `transformers` does not take a configuration."""
    try:
        yield
    except NodewireError:
        raise
    except Exception as error:  # the library's checks of a configuration have no common class
        first = (str(error).splitlines() or [""])[0]
        raise BadInput("config.json", f"{type(error).__name__}: {first[:240]}") from error


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json without what may name code. Raises BadInput: more layers or labels than a model has."""
    kept: dict[str, Any] = {}
    for name, value in config.items():
        most = MAX_LAYERS if _LAYERS.search(name) else MAX_LABELS if name == "num_labels" else None
        numbers = [n for n in (value if isinstance(value, list) else [value]) if isinstance(n, int | float)]
        count = sum(numbers) if name == "depths" else max((*numbers, len(numbers)))
        if most is not None and count > most:
            raise BadInput(name[:80], f"{str(value)[:40]}, at most {most}")
        if not _CODE.search(name):
            kept[name] = plain(value) if isinstance(value, Mapping) else value
    return kept


def values(module: Any) -> dict[str, torch.Tensor]:
    """Values of buffers that no checkpoint holds, as the module's own initialization makes them. Raises BadInput."""
    places = {}
    for parameter in (*module.parameters(), *module.buffers()):
        parameter._is_hf_initialized = True
    for path, part in module.named_modules():
        part._is_hf_initialized = not part._non_persistent_buffers_set
        for name in part._non_persistent_buffers_set:
            places[f"{path}.{name}".removeprefix(".")] = (part, name, part._buffers[name])
    if (nbytes := sum(empty.nbytes for _, _, empty in places.values())) > MAX_BUFFER_BYTES:
        raise BadInput("config.json", f"{nbytes} bytes of positions and the like, at most {MAX_BUFFER_BYTES}")
    for part, name, empty in places.values():
        part._buffers[name] = torch.zeros(empty.shape, dtype=empty.dtype)
    module.initialize_weights()
    values = {}
    for where, (part, name, empty) in places.items():
        values[where], part._buffers[name] = part._buffers[name], empty
    return values
