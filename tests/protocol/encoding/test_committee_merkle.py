"""Merkle trees: every leaf has a proof, nothing else has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadHash, BadInput
from nodewire.protocol.encoding import merkle

trees = st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=33, unique=True)


@given(trees, st.data())
def test_every_leaf_is_proven_and_at_its_own_place_only(values, data):
    leaves = [merkle.leaf(value) for value in values]
    root, count = merkle.root(leaves), len(leaves)
    index = data.draw(st.integers(0, count - 1))
    path = merkle.proof(leaves, index)
    merkle.verify(root, leaves[index], index, count, path)
    for wrong in {0, count - 1} - {index}:
        with pytest.raises((BadHash, BadInput)):
            merkle.verify(root, leaves[index], wrong, count, path)
    with pytest.raises(BadHash):
        merkle.verify(root, merkle.leaf(b"something else"), index, count, path)
    with pytest.raises(BadInput):
        merkle.verify(root, leaves[index], index, count, (*path, leaves[0]))


@given(trees)
def test_another_number_of_leaves_is_another_root(values):
    leaves = [merkle.leaf(value) for value in values]
    assert merkle.root(leaves) != merkle.root([*leaves, leaves[-1]])
    with pytest.raises((BadHash, BadInput)):
        merkle.verify(merkle.root(leaves), leaves[0], 0, len(leaves) + 1, merkle.proof(leaves, 0))


def test_an_inner_node_is_no_leaf():
    leaves = [merkle.leaf(bytes([i])) for i in range(4)]
    inner = merkle._node(leaves[0], leaves[1])
    other = merkle._node(leaves[2], leaves[3])
    with pytest.raises(BadHash):
        merkle.verify(merkle.root(leaves), inner, 0, 2, (other,))


def test_a_salt_hides_a_leaf_and_nothing_has_a_root_too():
    assert merkle.leaf(b"x", merkle.salt(b"s" * 32, 0)) != merkle.leaf(b"x", merkle.salt(b"s" * 32, 1))
    assert merkle.root([]) == merkle.root([])
    with pytest.raises(BadInput):
        merkle.leaf(b"x", b"short")
    with pytest.raises(BadInput):
        merkle.proof([], 0)
