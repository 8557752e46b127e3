"""Hostile task programs and weights, made by seeded choices: what bench.fuzz.fuzz_tasks has nodewire read.

`calls` are programs of any operators of the whitelist with any arguments, drawn by the operators' own schemas over
values of many dtypes, shapes and layouts; `bombs` are those that cost most to refuse; `weights` are safetensors files.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import torch

from nodewire.graph.program.format import DTYPES, Input, Node, Output, Program, Weight
from nodewire.graph.program.whitelist import OPS, Ref
from nodewire.protocol.encoding import canonical

F32, I64 = torch.float32, torch.int64
ROWS = 3
X = Ref("x")

INPUTS = (
    Input("x", F32, ("b", 4), "in"),
    Input("y", F32, ("b", 2, 4, 4), "in"),
    Input("ids", I64, ("b",), "in", below=8),
    Input("mask", torch.bool, ("b", 4), "in"),
)
WEIGHTS = (
    Weight("w", F32, (4, 4)),
    Weight("v", F32, (4,)),
    Weight("k", F32, (4, 2, 3, 3)),
    Weight("turns", F32, (2, 4, 3, 2)),
    Weight("table", F32, (8, 4)),
    Weight("flags", torch.bool, (4,)),
    Weight("half", torch.bfloat16, (4, 4)),
)
PRELUDE = (
    Node("turned", "aten.transpose.int", (Ref("y"), 1, 2)),
    Node("flat", "aten.reshape.default", (Ref("y"), [Ref("b"), 2, 16])),
    Node("wide", "aten.expand.default", (Ref("v"), [Ref("b"), 4, 4])),
    Node("thin", "aten.slice.Tensor", (Ref("y"), 3, 0, 4, 2)),
    Node("xh", "aten._to_copy.default", (X,), {"dtype": torch.bfloat16}),
    Node("xi", "aten._to_copy.default", (Ref("w"),), {"dtype": torch.int32}),
    Node("grid", "aten.unsqueeze.default", (Ref("ids"), 1)),
    Node("three", "aten.split.Tensor", (Ref("y"), 1, 1)),
    Node("one", "aten.full.default", ([], 1.5)),
    Node("none", "aten.zeros.default", ([0, 4],)),
    Node("large", "py.mul", (Ref("b"), 2**20)),
)
TENSORS = ("x", "y", "ids", "mask", "w", "v", "k", "turns", "table", "flags", "half", "turned", "flat", "wide", "thin",
           "xh", "xi", "grid", "one", "none")  # fmt: skip
_INTS = (0, 1, 2, 3, 4, -1, -2, 5, 8, 16, 255, 256, 257, -5, 2**20, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1,
         -(2**63))  # fmt: skip
_FLOATS = (0.0, -0.0, 1.0, 0.5, -1.5, 1e-12, 1e30, 1e308, float("inf"), float("-inf"), float("nan"), 5e-324)
_TEXTS = ("none", "tanh", "mean", "same", "valid", "reflect", "floor", "trunc", "", "x" * 16)
_LIKELY = {
    "input": ("x", "y", "turned", "flat"),
    "self": TENSORS,
    "weight": ("w", "v", "k", "turns", "table"),
    "bias": ("v",),
    "mask": ("mask", "flags"),
    "source": ("x", "y", "thin", "wide"),
    "query": ("y", "turned", "flat", "thin"),
    "key": ("y", "turned", "flat", "thin"),
    "value": ("y", "turned", "flat", "thin"),
    "mat1": ("x", "w"),
    "mat2": ("w",),
    "index": ("ids", "grid"),
    "condition": ("mask", "flags"),
    "attn_mask": ("w", "flags", "one"),
    "indices": ("ids", "grid", "xi"),
}


def calls(rng: random.Random) -> Program:
    """Up to four calls, each free to use what the ones before it made."""
    known = list(TENSORS)
    nodes: list[Node] = list(PRELUDE)
    for k in range(rng.choice((1, 1, 1, 2, 4))):
        name = f"evil.{k}"
        nodes.append(call(rng, name, rng.choice(_OPS), known))
        known += [name] * 4
    nodes.append(Node("out", "aten.add.Tensor", (X, 1.0)))
    outputs = (Output("out", "out", F32, ("b", 4), "result"),)
    return Program({"b": ROWS}, ROWS, INPUTS, WEIGHTS, tuple(nodes), outputs)


def call(rng: random.Random, name: str, op: str, known: list[str]) -> Node:
    args, kwargs = [], {}
    for parameter in OPS[op].parameters:
        if not parameter.required and rng.random() < 0.5:
            if not parameter.keyword:
                break
            continue
        value = argument(rng, parameter.kind, parameter.name, known)
        if parameter.keyword:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return Node(name, op, tuple(args), kwargs)


_OPS = sorted(OPS)


def argument(rng: random.Random, kind: str, name: str, known: list[str]) -> Any:
    """A value for a parameter of this kind; one in twenty is of another kind."""
    if rng.random() < 0.05:
        return rng.choice(
            (None, True, 1, -1, 0.5, "x", [], [X], [1, 2], [[1]], X, Ref("three"), Ref("b"), F32, Ref("?"))
        )
    if kind.startswith("Optional["):
        return None if rng.random() < 0.3 else argument(rng, kind[9:-1], name, known)
    if kind.startswith("List["):
        length = rng.choice((1, 2, 2, 3, 4, 0, 5, 9))
        return [argument(rng, kind[5:-1], name, known) for _ in range(length)]
    match kind:
        case "Tensor" | "Value":
            if rng.random() < 0.04:
                return rng.choice((1, 2.5, Ref("b"), Ref("three")))
            return Ref(rng.choice(_LIKELY[name] if name in _LIKELY and rng.random() < 0.7 else known))
        case "int" | "Index":
            return Ref(rng.choice(("b", "large"))) if rng.random() < 0.1 else integer(rng)
    return constant(rng, kind)


def constant(rng: random.Random, kind: str) -> Any:
    """A value of this kind that stands in the program itself; None for a kind that is not known."""
    match kind:
        case "number":
            return rng.choice((*_FLOATS, integer(rng)))
        case "float":
            return rng.choice(_FLOATS)
        case "bool":
            return rng.random() < 0.5
        case "ScalarType":
            return rng.choice(list(DTYPES.values()))
        case "MemoryFormat":
            return rng.choice((torch.contiguous_format, torch.preserve_format))
        case "str":
            return rng.choice(_TEXTS)
    return None


def integer(rng: random.Random) -> int:
    return rng.choice(_INTS[:9] if rng.random() < 0.8 else _INTS)


def document(program: Program) -> Any:
    return canonical.decode(program.encode(), max_bytes=2**26)


# What costs most to refuse.


def bombs(rng: random.Random) -> bytes:
    return rng.choice(_BOMBS)(rng)


def _program(*nodes: Node, **changes: Any) -> bytes:
    said: dict[str, Any] = {"dims": {"b": 8}, "volume": 8, "inputs": INPUTS, "weights": WEIGHTS}
    outputs = (Output("out", "out", F32, ("b", 4), "result"),)
    every = (*nodes, Node("out", "aten.add.Tensor", (X, 1.0)))
    return Program(nodes=every, outputs=outputs, **{**said, **changes}).encode()


def _power(rng: random.Random, most: int = 62) -> int:
    return 2 ** rng.randrange(4, most) + rng.choice((-1, 0, 1))


def _huge(rng: random.Random) -> bytes:
    n, m = _power(rng), _power(rng, 40)
    size = rng.choice(([n], [n, m], [m, m, m], [1, n], [-1, n], [0, n, m]))
    dtype = rng.choice(list(DTYPES.values()))
    evil = rng.choice(
        (
            Node("evil", "aten.full.default", (size, 1), {"dtype": dtype}),
            Node("evil", "aten.zeros.default", (size,), {"dtype": dtype}),
            Node("evil", "aten.new_ones.default", (X, size)),
            Node("evil", "aten.expand.default", (Ref("one"), size)),
            Node("evil", "aten.repeat.default", (X, size)),
            Node("evil", "aten.reshape.default", (X, size)),
            Node("evil", "aten.arange.default", (rng.choice((n, float(n), 1e300, float("nan"))),)),
            Node("evil", "aten.arange.start_step", (-n, n, rng.choice((1, 2, m, -1, 0, 1e-300)))),
            Node("evil", "aten.constant_pad_nd.default", (X, [rng.choice((n, -n)), m])),
            Node("evil", "aten.full_like.default", (Ref("wide"), n)),
            Node("evil", "aten.upsample_nearest2d.vec", (Ref("y"), [n, m], None)),
            Node("evil", "aten.upsample_bilinear2d.vec", (Ref("y"), None, False, [float(n), rng.choice((1e300, 1.0))])),
            Node("evil", "aten.conv_transpose2d.input", (Ref("y"), Ref("turns"), None, [n, m])),
            Node("evil", "aten.conv_transpose2d.input", (Ref("y"), Ref("turns"), None, 1, 0, 0, 1, [n, m])),
        )
    )
    return _program(
        Node("one", "aten.ones.default", ([1],)), Node("wide", "aten.expand.default", (Ref("one"), [m])), evil
    )


def _outer(rng: random.Random) -> bytes:
    """Small operands, a large product, by broadcasting."""
    n = 2 ** rng.randrange(8, 20)
    op = rng.choice(
        ("aten.mul.Tensor", "aten.where.self", "aten.matmul.default", "aten.eq.Tensor", "aten.maximum.default")
    )
    first = Node("first", "aten.zeros.default", ([n, 1, 1, 1],))
    second = Node("second", "aten.zeros.default", ([1, n, 1, 1],))
    args = (Ref("first"), Ref("second"))
    if op == "aten.where.self":
        return _program(first, second, Node("c", "aten.eq.Tensor", args), Node("evil", op, (Ref("c"), *args)))
    return _program(first, second, Node("evil", op, args))


def _attention(rng: random.Random) -> bytes:
    """Quadratic scores, where the result is linear."""
    n = 2 ** rng.randrange(8, 22)
    shape = rng.choice(([1, 1, n, 8], [1, n, 8], [n, 8]))
    mask = [Node("mask", "aten.ones.default", ([1, n],), {"dtype": torch.bool})] if rng.random() < 0.5 else []
    args: list[Any] = [
        Ref("q"),
        Ref("q"),
        Ref("q"),
        Ref("mask") if mask else None,
        0.0,
        not mask and rng.random() < 0.5,
    ]
    return _program(
        Node("q", "aten.zeros.default", (shape,)),
        *mask,
        Node("evil", "aten.scaled_dot_product_attention.default", tuple(args)),
    )


def _many(rng: random.Random) -> bytes:
    """As many nodes as there may be, or more; each as slow to look at as may be."""
    count = rng.choice((1_000, 5_000, 16_000, 20_000, 60_000))
    kind = rng.choice(("chain", "split", "cat", "index", "attention", "grow"))
    before: tuple[Node, ...] = ()
    nodes = []
    for k in range(count):
        last = Ref(f"n{k - 1}") if k else X
        match kind:
            case "chain":
                nodes.append(Node(f"n{k}", "aten.relu.default", (last,)))
            case "split":
                nodes.append(Node(f"n{k}", "aten.split.Tensor", (Ref("w"), 1)))
            case "cat":
                nodes.append(Node(f"n{k}", "aten.cat.default", ([X] * min(256, 400_000 // count),)))
            case "index":
                nodes.append(Node(f"n{k}", "aten.index.Tensor", (Ref("table"), [Ref("ids"), Ref("ids")])))
            case "attention":
                nodes.append(Node(f"n{k}", "aten.scaled_dot_product_attention.default", (Ref("y"),) * 3))
            case "grow":
                nodes.append(Node(f"n{k}", "aten.cat.default", ([last, last],)))
    return _program(*before, *nodes)


def _wide(rng: random.Random) -> bytes:
    """Python's own operators on what is no size, and sizes beyond 64 bits."""
    op = rng.choice(("py.mul", "py.add", "py.floordiv", "py.sub", "py.getitem"))
    left = rng.choice((Ref("pieces"), X, Ref("b"), 2**62))
    nodes = [
        Node("pieces", "aten.split.Tensor", (Ref("w"), 1)),
        Node("n0", op, (left, rng.choice((2**40, Ref("pieces"), left)))),
    ]
    nodes += [Node(f"n{k}", op, (Ref(f"n{k - 1}"), Ref(f"n{k - 1}"))) for k in range(1, 40)]
    return _program(*nodes)


def _deep(rng: random.Random) -> bytes:
    """Ranks and nesting."""
    rank = rng.choice((9, 64, 65, 255, 256))
    nodes = rng.choice(
        (
            [Node("evil", "aten.reshape.default", (X, [1] * rank + [-1]))],
            [Node("evil", "aten.expand.default", (X, [1] * rank + [8, 4]))],
            [Node(f"n{k}", "aten.unsqueeze.default", (Ref(f"n{k - 1}") if k else X, 0)) for k in range(rank)],
            [Node("evil", "aten.permute.default", (X, list(range(rank))))],
        )
    )
    data = _program(*nodes)
    if rng.random() < 0.5:
        return data
    said = canonical.decode(data, max_bytes=2**26)
    nested: Any = {"ref": "x"}
    for _ in range(rng.choice((2, 3, 20, 30))):
        nested = [nested]
    said["nodes"][-1][2] = [nested]
    return bytes(msgpack.packb(said))  # nobody is asked whether it is nested too deeply


def _sizes(rng: random.Random) -> bytes:
    """Dims and volume that lie, shapes that overflow, weights that nobody could hold."""
    most, volume = _power(rng, 41), _power(rng, 41)
    shape: tuple[int | str, ...] = tuple(rng.choice(("b", _power(rng, 41), 0, 1)) for _ in range(rng.randrange(1, 9)))
    weight = tuple(rng.choice((2**40, 1, 0, 4)) for _ in range(rng.randrange(0, 9)))
    inputs = (*INPUTS, Input("z", rng.choice(list(DTYPES.values())), shape, "in"))
    return _program(dims={"b": most}, volume=volume, inputs=inputs, weights=(*WEIGHTS, Weight("z.w", F32, weight)))


def _msgpack(rng: random.Random) -> bytes:
    """A document that is small as bytes and large as objects."""
    n = rng.choice((10, 1_000, 100_000, 1_000_000, 4_000_000))
    head = msgpack.packb("nodes")
    body = rng.choice(
        (
            b"\xdd" + struct.pack(">I", n) + rng.choice((b"\x90", b"\x80", b"\xc0", b"\xa1a", b"\xcd\x03\xe8")) * n,
            b"\xdd" + struct.pack(">I", 2**32 - 1) + b"\x90",
            b"\xdf" + struct.pack(">I", 2**31) + b"\xa1a\x90",
            b"\x91" * min(n, 100_000) + b"\x90",
            b"\x81\xa1a" * min(n, 100_000) + b"\x90",
            b"\xc6" + struct.pack(">I", rng.choice((n, 2**32 - 1))) + b"\x00" * n,
        )
    )
    return b"\x81" + bytes(head) + body


def _text(rng: random.Random) -> bytes:
    """Names and strings."""
    bad = rng.choice(("", "../../etc/passwd", "x\x00", "__import__('os')", "a" * 161, "é", "b", "x", "evil\n"))
    said = canonical.decode(_program(Node("evil", "aten.gelu.default", (X,), {"approximate": "none"})), max_bytes=2**26)
    node = said["nodes"][0]
    match rng.randrange(6):
        case 0:
            node[0] = bad
        case 1:
            node[1] = rng.choice(
                (bad, "aten.gelu", "aten.from_file.default", "py.eval", "os.system", "aten.gelu_.default")
            )
        case 2:
            node[3] = {bad or "x": bad}
        case 3:
            node[3] = {"approximate": bad[:16]}
        case 4:
            said["inputs"][0]["edge"] = bad
        case 5:
            said["outputs"][0]["value"] = bad
    return canonical.encode(said)


_BOMBS: tuple[Callable[[random.Random], bytes], ...] = (
    *(_huge, _outer, _attention, _wide, _deep, _sizes, _text) * 4,
    _msgpack,
    _many,
)


# Weights.


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        w.name: torch.rand(w.shape, generator=generator).mul(3).sub(1).to(w.dtype) for w in WEIGHTS
    }  # fmt: skip


def weights(rng: random.Random, good: bytes) -> bytes:
    """A safetensors file whose header says otherwise than its bytes."""
    length = int.from_bytes(good[:8], "little")
    said, body = json.loads(good[8 : 8 + length]), good[8 + length :]
    name = rng.choice(sorted(said))
    entry = dict(said[name])
    first, last = entry["data_offsets"]
    n = rng.choice((-1, 0, 1, 2**31, 2**40, 2**63, 2**64, 10**4_000, 1.5, True, None, "4"))
    match rng.randrange(10):
        case 0:
            entry["data_offsets"] = rng.choice(
                ([first - 4, last - 4], [0, last], [last, first], [first, n], [first], n)
            )
        case 1:
            entry["shape"] = rng.choice(([n], [n] * 9, [*entry["shape"], 1], [*entry["shape"], 0], n, [2**40] * 8))
        case 2:
            entry["dtype"] = rng.choice(("F64", "I8", "BOOL", "F8_E4M3", "f32", n))
        case 3:
            said["__metadata__"] = rng.choice(({"a": "b"}, {"a": n}, n, [n], {"x": "y" * 70_000}))
        case 4:
            said[rng.choice(("\ud800", "x" * 5_000, "", "w\x00"))] = entry
        case 5:
            del said[name]
            name = ""
        case 6:
            length = rng.choice((0, length - 1, length + 1, 2**31, 2**63, 2**64 - 1))
            return struct.pack("<Q", length) + good[8:]
        case 7:
            return good[: rng.randrange(len(good))]
        case 8:
            text = json.dumps(said).replace('"shape"', '"shape": [1], "shape"', 1).encode()
            return struct.pack("<Q", len(text)) + text + body
        case 9:
            text = b"[" * 5_000 if rng.random() < 0.5 else b'{"a":' + b"[]," * 60_000
            return struct.pack("<Q", len(text)) + text + body
    if name:
        said[name] = entry
    text = json.dumps(said).encode()
    return struct.pack("<Q", len(text)) + text + body[: rng.choice((len(body), len(body), len(body) - 4))]
