"""Where a checkpoint keeps a module's weights, which its names and its layout may have older forms of.

The library's own table of conversions says so. Renamings are followed; of what joins tensors, only what puts them end
to end: experts stacked, and of each expert the matrices that stand above each other; and of what parts them, only what
cuts one into parts of the same size that stand above each other.
"""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadInput, Unsupported
from nodewire.weights.tensorfile import StoredTensor, elements

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Checkpoint:
    """The stored tensors of a module's directory, by the module's names."""

    def __init__(self, module: Any, stored: Mapping[str, StoredTensor], tied: Mapping[str, Sequence[str]]) -> None:
        from transformers import conversion_mapping, core_model_loading

        transforms = conversion_mapping.get_model_conversion_mapping(module)
        joining = [one for one in transforms if isinstance(one, core_model_loading.WeightConverter)]
        renaming: Any = [one for one in transforms if not isinstance(one, core_model_loading.WeightConverter)]
        self._stored, self._tied = stored, tied
        self._found: dict[str, list[tuple[str | None, str]]] = {}
        self._chunks: dict[str, tuple[str, int, int]] = {}
        chunked: dict[str | None, list[str]] = {
            one.source_patterns[0]: list(one.target_patterns)
            for one in joining
            if [(type(step).__name__, getattr(step, "dim", None)) for step in one.operations] == [("Chunk", 0)]
        }
        own = module.state_dict()
        for name in stored:
            found, pattern = core_model_loading.rename_source_key(
                name, renaming, joining, module.base_model_prefix, own
            )
            self._found.setdefault(found, []).append((pattern, name))
            targets = chunked.get(pattern, [])
            for place, target in enumerate(targets):
                self._chunks[found.replace(targets[0], target)] = (name, place, len(targets))
        self._orders = {pattern: tuple(one.source_patterns) for one in joining for pattern in one.source_patterns}
        self._operations = {
            pattern: tuple((type(step).__name__, getattr(step, "dim", None)) for step in one.operations)
            for one in joining
            for pattern in one.source_patterns
        }

    def parts(self, weight: str) -> Sequence[StoredTensor]:
        """The stored tensors that make up a weight, end to end.

        Raises:
            BadInput: the checkpoint lacks it.
            Unsupported: it is made of others in another way.

        """
        if weight in self._chunks:
            name, place, of = self._chunks[weight]
            rows, *rest = self._stored[name].shape
            each = rows // of * prod(rest)
            part = elements(self._stored[name], place * each, (place + 1) * each)
            return (replace(part, shape=(rows // of, *rest)),)
        names = (weight, *self._tied.get(weight, ()))
        found = next((self._found[name] for name in names if name in self._found), None)
        if found is None:
            raise BadInput(weight, "is not in the directory's safetensors files")
        pattern = found[0][0]
        if pattern is None:
            return (self._stored[found[-1][1]],)
        order, operations = self._orders[pattern], self._operations[pattern]
        stacked = (("MergeModulelist", 0),)
        if operations != stacked + (("Concatenate", 1),) * (len(order) > 1):
            raise Unsupported(weight, f"is made of others by {', '.join(name for name, _ in operations)}")
        columns = [sorted((name for made, name in found if made == one), key=_natural) for one in order]
        if len({len(column) for column in columns}) != 1:
            raise BadInput(weight, "lacks some of its experts in the directory's safetensors files")
        return [self._stored[name] for row in zip(*columns, strict=True) for name in row]


def _natural(name: str) -> list[int | str]:
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r"(\d+)", name)]
