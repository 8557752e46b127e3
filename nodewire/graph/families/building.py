"""A configuration as a module without weights: on the meta device, with the values of what is no weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from nodewire.errors import BadConfig, BadInput, NodewireError, Unsupported
from nodewire.graph.examples import Signature
from nodewire.graph.families.inputs import LARGEST, Largest
from nodewire.graph.families.table import ARCHITECTURES, Family

_EXPERTS = "batched_mm"
"""The one implementation of experts that is made of tensors' operators alone."""


@dataclass(frozen=True, slots=True)
class Built:
    """`buffers` has the values of the module's buffers that are in no checkpoint."""

    module: Any
    buffers: Mapping[str, torch.Tensor]
    called: Signature
    family: Family


def build(config: Mapping[str, Any], largest: Largest = LARGEST) -> Built:
    """The module that a config.json describes, in evaluation mode.

    Raises:
        BadConfig: `transformers` is not installed.
        Unsupported: its architecture is not one of the table's.
        BadInput: `transformers` does not take the configuration.
    """
    try:
        import transformers
    except ImportError as error:
        raise BadConfig("transformers", "not installed: pip install nodewire[register]") from error
    names = config.get("architectures") or [""]
    family = ARCHITECTURES.get(str(names[0]))
    if family is None:
        raise Unsupported("architectures", f"{str(names[0])[:60]!r} is not one of {', '.join(sorted(ARCHITECTURES))}")
    wanted: dict[str, Any] = {"attn_implementation": family.attention} if family.attention else {}
    try:
        settings = transformers.AutoConfig.for_model(**config)
        cls = getattr(transformers, str(names[0]))
        if cls._can_set_experts_implementation():
            wanted["experts_implementation"] = _EXPERTS
        with torch.device("meta"):
            module = cls._from_config(settings, **wanted).eval()
        called = family.called(settings, largest)
    except NodewireError:
        raise
    except Exception as error:  # the library's checks of a configuration have no common class
        raise BadInput("config.json", f"{type(error).__name__}: {str(error).splitlines()[0][:240]}") from error
    return Built(module, _values(module), called, family)


def _values(module: Any) -> dict[str, torch.Tensor]:
    """The values of buffers that no checkpoint holds, as the module's own initialization makes them."""
    places = {}
    for parameter in (*module.parameters(), *module.buffers()):
        parameter._is_hf_initialized = True
    for path, part in module.named_modules():
        part._is_hf_initialized = not part._non_persistent_buffers_set
        for name in part._non_persistent_buffers_set:
            places[f"{path}.{name}".removeprefix(".")] = (part, name, part._buffers[name])
    for part, name, empty in places.values():
        part._buffers[name] = torch.zeros(empty.shape, dtype=empty.dtype)
    module.initialize_weights()
    values = {}
    for where, (part, name, empty) in places.items():
        values[where], part._buffers[name] = part._buffers[name], empty
    return values
