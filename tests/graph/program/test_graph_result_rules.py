"""Every rule says what the interpreter says on the meta device: type, strides, and whose storage it is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadTask
from nodewire.graph.program.format import Node, Program
from nodewire.graph.program.interpreter import Interpreter
from nodewire.graph.program.result_rules import _RULES, by_rule
from nodewire.graph.program.whitelist import OPS, Ref

DTYPES = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.int64])
sizes = st.lists(st.sampled_from([1, 1, 2, 3, 5]), min_size=0, max_size=4)


@st.composite
def tensors(draw, shape=sizes):
    made = torch.empty(draw(shape), dtype=draw(DTYPES), device="meta")
    if made.dim() > 1 and draw(st.integers(0, 3)) == 0:
        made = made.transpose(0, -1)
    return made


def asked(op, args, kwargs):
    """(type, strides, the argument whose storage it is) by the interpreter; None if it refuses."""
    names = [f"a{k}" for k in range(len(args))]
    env = {name: arg for name, arg in zip(names, args, strict=True) if isinstance(arg, torch.Tensor)}
    env |= {name: arg for name, arg in kwargs.items() if isinstance(arg, torch.Tensor)}
    node = Node(
        "n",
        op,
        tuple(Ref(name) if name in env else arg for name, arg in zip(names, args, strict=True)),
        {name: Ref(name) if name in env else arg for name, arg in kwargs.items()},
    )
    found = []
    run = Interpreter(Program({}, 1, (), (), (node,), ()), env, "meta")
    try:
        run({}, {}, lambda _, __, ___, result, ____: found.append(described(result, env.values())))
    except BadTask:
        return None
    return found[0]


def described(tensor, others):
    shares = [k for k, other in enumerate(others) if other.untyped_storage()._cdata == tensor.untyped_storage()._cdata]
    strides = [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]
    return tensor.dtype, tuple(tensor.shape), strides, shares, tensor.untyped_storage().nbytes()


def compare(op, *args, **kwargs):
    spoken = by_rule(OPS[op], OPS[op].bound(args, kwargs))
    if spoken is not None:
        others = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, torch.Tensor)]
        assert described(spoken, others) == asked(op, args, kwargs)
    return spoken is not None


@settings(deadline=None, max_examples=60)
@given(tensors(), st.sampled_from([op for op, rule in _RULES.items() if rule.__name__ == "_same"]))
def test_of_one_operand(x, op):
    compare(op, x)
    compare("aten.pow.Tensor_Scalar", x, 2)


@settings(deadline=None, max_examples=150)
@given(tensors(), tensors(), st.sampled_from(["add", "sub", "mul", "div"]))
def test_of_two_operands_that_may_spread(x, y, name):
    compare(f"aten.{name}.Tensor", x, y)
    compare(f"aten.{name}.Tensor", x, 2.5)


@settings(deadline=None, max_examples=60)
@given(tensors(), tensors(st.just([4, 3])), st.none() | tensors(st.just([4])))
def test_of_linear_layers(x, weight, bias):
    compare("aten.linear.default", x, weight, bias)


def test_of_views_and_refusals():
    x = torch.empty(2, 3, 4, device="meta").transpose(0, 2)
    assert compare("aten.transpose.int", x, 0, 1) and compare("aten.slice.Tensor", x, 1, 0, 2)
    assert compare("aten.reshape.default", x, [2, -1]) and compare("aten._to_copy.default", x, dtype=torch.bfloat16)
    assert by_rule(OPS["aten.reshape.default"], {"self": x, "shape": [5, -1]}) is None


@settings(deadline=None, max_examples=60)
@given(tensors(), st.lists(st.sampled_from([-1, 1, 2, 3, 5]), max_size=4))
def test_of_expansion(x, shape):
    compare("aten.expand.default", x, shape)


@settings(deadline=None, max_examples=40)
@given(tensors(), DTYPES)
def test_of_layer_norm(x, dtype):
    if x.dim():
        weight = torch.empty(x.shape[-1:], dtype=dtype, device="meta")
        compare("aten.layer_norm.default", x, [x.shape[-1]], weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("masked", [None, torch.bool, torch.float32])
@pytest.mark.parametrize("length", [1, 7])
def test_of_attention(dtype, masked, length):
    query, key = (torch.empty(2, n, 4, 8, dtype=dtype, device="meta").transpose(1, 2) for n in (length, 7))
    mask = None if masked is None else torch.empty(2, 1, length, 7, dtype=masked, device="meta")
    assert compare("aten.scaled_dot_product_attention.default", query, key, key, mask) or dtype != masked
    compare(
        "aten.scaled_dot_product_attention.default",
        query.reshape(8, length, 8),
        key.reshape(8, 7, 8),
        key.reshape(8, 7, 8),
    )


def test_rules_speak_where_it_counts():
    x = torch.empty(2, 3, 4, device="meta")
    weight = torch.empty(5, 4, device="meta")
    assert compare("aten.add.Tensor", x, x) and compare("aten.mul.Tensor", x, torch.empty(4, device="meta"))
    assert compare("aten.linear.default", x, weight) and compare("aten.gelu.default", x)
    assert compare("aten.expand.default", torch.empty(2, 1, 4, device="meta"), [-1, 3, -1])
