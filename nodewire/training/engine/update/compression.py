"""An update as bytes: float32, blocks of 8 or 4 bits, or only its largest numbers. nips/31-training-updates.md.

A packed update is a safetensors file whose tensors' names, dtypes and shapes follow from the model's shapes and the
recipe alone, so who unpacks checks them before it takes memory. f32 holds the tensors themselves. The others see all
numbers as one row, in the family's order, cut into blocks (the last one filled up with zeros), and hold

    int8     `scales` f32 [blocks]: s = max|x| / 127; `codes` i8 [numbers]: x / s
    int4     `scales` f32 [blocks]: s = max|x| / 7; `codes` u8 [ceil(numbers / 2)]: x / s as two's complements of 4
             bits, the earlier one in the low half of a byte
    topk     of each block only the k largest |x| (of equals the earlier): `places` i16 [blocks, k] in it, ascending;
      bits 8   `scales` f32 [blocks] and `codes` i8 [blocks, k], as int8
      bits 2   `scales` f32 [blocks, 2]: mean|x| of the kept numbers up to their mean, and of those above it;
               `codes` u8 [blocks, ceil(k / 4)]: 2 bits each, 1 = negative, 2 = above the mean, earlier ones lower

Divisions are float32, rounded to even; means are float64 (`sums.fold`): the same bits on every machine. A scale below
2^-126 is 0, and then so are the block's codes. No number may be above 2^64, which no step of training makes.

What is lost in packing is carried to the next round where the recipe says so (error feedback: Seide et al. 2014,
Karimireddy et al. 2019, arXiv 1901.09847): what is packed is delta + error_feedback x residual. Means of the largest
and of the rest in 2 bits: Sarfi et al. 2025, arXiv 2508.15706.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nodewire.errors import BadData, BadUpdate, TooLarge
from nodewire.training.engine import state
from nodewire.training.engine.sums import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nodewire.protocol.model.families import Shapes
    from nodewire.training.engine.state import State
    from nodewire.training.protocol.recipe import Compression

LARGEST = 2.0**64
_SMALLEST = 2.0**-126
_LIMIT = {"int8": 127, "int4": 7, "topk": 127}
"""The largest code."""
_ROW = 1 << 18
"""About how many numbers are packed, or unpacked, at a time: what that takes does not grow with the model."""
_SLACK = 1e-4
"""Of bounds, for rounding."""
_HALF = 0.5 + _SLACK


def pack(delta: State, compression: Compression, residual: State | None = None) -> tuple[bytes, State | None]:
    """The packed update, and the residual for the same sender's next round (None without error feedback).

    Args:
        delta: tensors in the family's order.
        compression: the recipe's; it says how numbers are rounded, and which are left out.
        residual: what the round before left; None at first, and whenever another provider takes over the shard.

    Raises:
        BadUpdate: a number is not finite, or above 2^64.

    """
    sent, left = coded(delta, compression, residual)
    return state.pack(sent), left


def coded(delta: State, compression: Compression, residual: State | None = None) -> tuple[State, State | None]:
    """`pack`, but the update as the tensors of its file; in f32 they are those of `delta`."""
    feedback = float(compression.error_feedback)
    whole = fed(delta, compression, residual)
    _check_range(whole)
    sent = whole
    if compression.method != "f32":
        sent = _in_blocks(whole, compression)
    if not feedback:
        return sent, None
    left = {name: tensor.clone() for name, tensor in delta.items()} if whole is delta else whole
    if sent is whole:
        return sent, {name: tensor - tensor for name, tensor in whole.items()}
    return sent, _without(left, sent, compression)


def _in_blocks(delta: State, how: Compression) -> dict[str, Tensor]:
    """The tensors of a packed update, a few blocks at a time."""
    shapes = {name: tuple(tensor.shape) for name, tensor in delta.items()}
    made = {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape) in _types(shapes, how).items()}
    at = dict.fromkeys(made, 0)
    for row in _in_rows(delta.values(), _at_once(how)):
        blocks = torch.nn.functional.pad(row, (0, -len(row) % how.block)).view(-1, how.block)
        for name, part in _coded(blocks, len(row), how).items():
            made[name][at[name] : at[name] + len(part)] = part
            at[name] += len(part)
    return made


def _at_once(how: Compression) -> int:
    """Numbers that are looked at together: whole blocks."""
    return max(1, _ROW // how.block) * how.block


def _in_rows(tensors: Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """All numbers of tensors as one row, in stretches of `size`; the last may be shorter."""
    waiting: list[Tensor] = []
    missing = size
    for tensor in tensors:
        for part in _cut(tensor.reshape(-1), missing, size):
            waiting.append(part)
            missing -= len(part)
            if not missing:
                yield waiting[0] if len(waiting) == 1 else torch.cat(waiting)
                waiting, missing = [], size
    if waiting:
        yield torch.cat(waiting)


def _cut(row: Tensor, first: int, size: int) -> Iterator[Tensor]:
    """A row in stretches, the first of `first` numbers."""
    if len(row):
        yield row[:first]
    for at in range(first, len(row), size):
        yield row[at : at + size]


def fed(delta: State, compression: Compression, residual: State | None) -> State:
    """What is packed: the delta, and of what packing lost before the share that the recipe says."""
    feedback = float(compression.error_feedback)
    if residual is None or not feedback:
        return delta
    return {name: tensor + feedback * residual[name] for name, tensor in delta.items()}


def unpack(data: bytes, shapes: Shapes, compression: Compression) -> State:
    """The update in `data`; `shapes` are the recipe's, and its order is the update's.

    Raises:
        TooLarge: longer than an update of this model and form can be.
        BadUpdate: shorter, of other names, shapes or dtypes, or numbers that packing does not make.

    """
    if len(data) > (most := most_bytes(shapes, compression)):
        raise TooLarge("update", f"{len(data)} bytes, at most {most}")
    try:
        parts = state.unpack(data, _types(shapes, compression), field="update")
    except BadData as error:
        raise BadUpdate(error.field, error.reason) from error
    if compression.method == "f32":
        _check_range(parts)
        return parts
    found = {name: torch.empty(shape) for name, shape in shapes.items()}
    for place, row in _by_place(found, parts, compression):
        place.copy_(row)
    return found


def _without(left: State, sent: State, how: Compression) -> State:
    """`left` less what was sent, in its place."""
    for place, row in _by_place(left, sent, how):
        place.sub_(row)
    return left


def _by_place(whole: State, parts: Mapping[str, Tensor], how: Compression) -> Iterator[tuple[Tensor, Tensor]]:
    """Stretches of `whole`, each with what an update holds of it. Raises BadUpdate."""
    sizes = [tensor.numel() for tensor in whole.values()]
    rows = _decoded(parts, sum(sizes), how)
    row = torch.empty(0)
    for tensor in whole.values():
        at, flat = 0, tensor.view(-1)
        while at < len(flat):
            if not len(row):
                row = next(rows)
            place = flat[at : at + len(row)]
            yield place, row[: len(place)]
            row, at = row[len(place) :], at + len(place)


def most_lost(data: bytes, shapes: Shapes, compression: Compression) -> State:
    """The most that packing can have lost of every number, if `data` is what it made: no residual is larger.

    f32 loses nothing. A number with a code is off by half a step at most. What topk leaves out is no larger than the
    least that it keeps; of those kept in 2 bits the low ones are 0 to m and the high ones m to what is left for one of
    them when all others are m, m being the mean of both. Raises as `unpack`.
    """
    sent = unpack(data, shapes, compression)
    if compression.method == "f32":
        return {name: torch.zeros_like(tensor) for name, tensor in sent.items()}
    sizes = [tensor.numel() for tensor in sent.values()]
    parts = state.unpack(data, _types(shapes, compression), field="update")
    row = _most_lost(parts, compression).reshape(-1)[: sum(sizes)]
    tensors = zip(torch.split(row, sizes), sent.items(), strict=True)
    return {name: bound.clone().view(tensor.shape) for bound, (name, tensor) in tensors}


def _most_lost(parts: Mapping[str, Tensor], how: Compression) -> Tensor:
    """Bounds [blocks, block]."""
    tiny = how.block * _SMALLEST
    if how.method != "topk":
        return (_HALF * parts["scales"][:, None] + tiny).expand(-1, how.block)
    places = parts["places"].long()
    if how.bits == 8:
        half = _HALF * parts["scales"][:, None]
        least = parts["codes"].float().abs().amin(1, keepdim=True) * parts["scales"][:, None]
        inside, outside = half.expand(-1, how.kept), least + half
    else:
        low, high = parts["scales"][:, :1], parts["scales"][:, 1:]
        above = (_parted(parts["codes"], 2, how.kept) & 2) > 0
        many = above.sum(1, keepdim=True)
        mean = (low * (how.kept - many) + high * many) / how.kept
        inside = torch.where(above, (many - 1).clamp(min=1) * (high - mean), torch.maximum(low, mean - low))
        inside, outside = inside + _SLACK * high, low * (1 + _SLACK)
    bounds = outside.expand(-1, how.block).clone()
    return bounds.scatter_(1, places, inside) + tiny


def most_bytes(shapes: Shapes, compression: Compression) -> int:
    """The most that a packed update of a model may take, header included: what is fetched of one."""
    types = _types(shapes, compression)
    return 8 + state.most_header_bytes(types) + sum(prod(shape) * dtype.itemsize for dtype, shape in types.values())


def _types(shapes: Shapes, how: Compression) -> state.Types:
    """The tensors of a packed update."""
    if how.method == "f32":
        return state.types(shapes)
    numbers = sum(prod(shape) for shape in shapes.values())
    blocks = -(-numbers // how.block)
    scales = {"scales": (torch.float32, (blocks,))}
    if how.method == "int8":
        return scales | {"codes": (torch.int8, (numbers,))}
    if how.method == "int4":
        return scales | {"codes": (torch.uint8, (-(-numbers // 2),))}
    places = {"places": (torch.int16, (blocks, how.kept))}
    if how.bits == 8:
        return scales | places | {"codes": (torch.int8, (blocks, how.kept))}
    return places | {"scales": (torch.float32, (blocks, 2)), "codes": (torch.uint8, (blocks, -(-how.kept // 4)))}


def _coded(blocks: Tensor, numbers: int, how: Compression) -> dict[str, Tensor]:
    if how.method == "topk":
        order = blocks.abs().sort(dim=1, descending=True, stable=True).indices
        places = order[:, : how.kept].sort(dim=1).values
        kept, named = blocks.gather(1, places), {"places": places.to(torch.int16)}
        if how.bits == 2:
            scales, codes = _in_two_bits(kept)
            return named | {"scales": scales, "codes": _joined(codes, 2)}
        scales, codes = _scaled(kept, _LIMIT["topk"])
        return named | {"scales": scales.view(-1), "codes": codes}
    scales, codes = _scaled(blocks, _LIMIT[how.method])
    codes = codes.view(-1)[:numbers]
    return {"scales": scales.view(-1), "codes": codes if how.method == "int8" else _joined((codes & 15)[None], 4)[0]}


def _decoded(parts: Mapping[str, Tensor], numbers: int, how: Compression) -> Iterator[Tensor]:
    """The row of numbers in stretches of whole blocks. Raises BadUpdate for what `_coded` does not make."""
    scales = parts["scales"]
    most = torch.tensor(LARGEST) / (1 if how.method == "topk" and how.bits == 2 else _LIMIT[how.method])
    if not bool(((scales == 0) | ((scales >= _SMALLEST) & (scales <= most))).all()):
        raise BadUpdate("update.scales", "not finite, negative, or out of range")
    size = _at_once(how)
    blocks = size // how.block
    of_codes = {"int8": size, "int4": size // 2, "topk": blocks}[how.method]
    for i in range(-(-numbers // size)):
        few = {
            "scales": scales[i * blocks : (i + 1) * blocks],
            "codes": parts["codes"][i * of_codes : (i + 1) * of_codes],
        }
        if how.method == "topk":
            few["places"] = parts["places"][i * blocks : (i + 1) * blocks]
        yield _row(few, min(size, numbers - i * size), how)


def _row(parts: Mapping[str, Tensor], numbers: int, how: Compression) -> Tensor:
    """The numbers of some blocks."""
    scales, codes = parts["scales"], parts["codes"]
    if how.method == "topk":
        places = parts["places"].long()
        if not bool(((places >= 0) & (places < how.block)).all() and (places.diff(dim=1) > 0).all()):
            raise BadUpdate("update.places", "not ascending within their block")
        kept = (
            _unscaled(scales[:, None], codes, 127)
            if how.bits == 8
            else _of_two_bits(scales, _parted(codes, 2, how.kept))
        )
        row = torch.zeros(len(scales), how.block).scatter_(1, places, kept).view(-1)
        # In 2 bits there is no zero: what fills up a block shorter than what is kept of one has its mean, too.
        if how.bits == 8 and bool(row[numbers:].any()):
            raise BadUpdate("update.places", "a number behind the last")
        return row[:numbers]
    if how.method == "int4":
        codes = _parted(codes[None], 4, numbers)[0]
        codes = (codes ^ 8).to(torch.int8) - 8
    codes = torch.nn.functional.pad(codes, (0, -numbers % how.block)).view(-1, how.block)
    return _unscaled(scales[:, None], codes, _LIMIT[how.method]).view(-1)[:numbers]


def _scaled(rows: Tensor, limit: int) -> tuple[Tensor, Tensor]:
    """Scales [rows, 1] and codes int8 [rows, n]: the largest number of a row has the code `limit`."""
    scales = rows.abs().amax(1, keepdim=True) / limit
    scales = torch.where(scales < _SMALLEST, 0.0, scales)
    # Below the smallest scale a number divided by 1 rounds to 0.
    return scales, (rows / torch.where(scales == 0, 1.0, scales)).round().to(torch.int8)


def _unscaled(scales: Tensor, codes: Tensor, limit: int) -> Tensor:
    """The numbers [rows, n] of scales [rows, 1] and codes int8 [rows, n]."""
    largest = codes.to(torch.int16).abs().amax(1, keepdim=True)
    if not bool((largest == torch.where(scales == 0, 0, limit)).all()):
        raise BadUpdate("update.codes", "a block's largest does not fit its scale")
    return codes.float() * scales


def _in_two_bits(kept: Tensor) -> tuple[Tensor, Tensor]:
    """Scales [rows, 2] and codes uint8 [rows, k] of the kept numbers."""
    sizes = kept.double().abs()
    above = sizes > fold(sizes)[:, None] / sizes.shape[1]
    scales = torch.stack([_mean_where(sizes, ~above), _mean_where(sizes, above)], 1).float()
    scales = torch.where(scales < _SMALLEST, 0.0, scales)
    above &= scales[:, 1:] > 0
    negative = (kept < 0) & (torch.where(above, scales[:, 1:], scales[:, :1]) > 0)
    return scales, negative.to(torch.uint8) | (above.to(torch.uint8) << 1)


def _of_two_bits(scales: Tensor, codes: Tensor) -> Tensor:
    """The numbers [rows, k] of scales [rows, 2] and codes uint8 [rows, k]."""
    above, negative = (codes & 2) > 0, (codes & 1) > 0
    low, high = scales[:, :1], scales[:, 1:]
    sizes = torch.where(above, high, low)
    if not bool((above.any(1, keepdim=True) == (high > 0)).all() and ((high == 0) | (high >= low)).all()):
        raise BadUpdate("update.scales", "two means that are not those of two halves")
    if bool((negative & (sizes == 0)).any()):
        raise BadUpdate("update.codes", "a negative zero")
    return torch.where(negative, -sizes, sizes)


def _mean_where(sizes: Tensor, chosen: Tensor) -> Tensor:
    return fold(torch.where(chosen, sizes, 0.0)) / chosen.sum(1).clamp(min=1)


def _joined(codes: Tensor, bits: int) -> Tensor:
    """Codes [rows, n] of so many bits in bytes [rows, ceil(n x bits / 8)], the first ones lowest."""
    each = 8 // bits
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % each)).to(torch.uint8)
    joined = codes[:, ::each].clone()
    for i in range(1, each):
        joined |= codes[:, i::each] << (bits * i)
    return joined


def _parted(packed: Tensor, bits: int, count: int) -> Tensor:
    """Codes uint8 [rows, count] from bytes. Raises BadUpdate for bits behind the last."""
    each = 8 // bits
    codes = torch.stack([(packed >> (bits * i)) & ((1 << bits) - 1) for i in range(each)], 2).flatten(1)
    if bool(codes[:, count:].any()):
        raise BadUpdate("update.codes", "bits behind the last")
    return codes[:, :count].contiguous()


def _check_range(tensors: State) -> None:
    for name, tensor in tensors.items():
        if not is_small(tensor):
            raise BadUpdate(f"update.{name}", "a number that is not finite, or above 2^64")


def is_small(tensor: Tensor) -> bool:
    """Whether all its numbers are finite, and none is above 2^64."""
    return not tensor.numel() or all(abs(float(bound)) <= LARGEST for bound in tensor.aminmax())
