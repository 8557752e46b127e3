"""The beacon's function: one output for one input, from any quorum, and nobody can fake a part of it.

`python -m tests.protocol.committee.test_dvrf` writes tests/vectors/dvrf1.json anew.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from coincurve import PrivateKey, PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadSignature
from nodewire.protocol.committee import dvrf
from nodewire.protocol.encoding.canonical import tagged_hash
from tests.protocol.committee.actors import stream

VECTORS = Path(__file__).parents[2] / "vectors" / "dvrf1.json"
ALPHA = b"\x07" * 32


def dealt(n=7, t=5):
    return dvrf.deal(n, t, stream("dvrf"))


def partials(group, alpha=ALPHA):
    return [dvrf.prove(i, secret, alpha) for i, secret in group.secrets.items()]


def test_every_quorum_gives_the_same_beacon():
    parts = partials(dealt())
    outputs = {dvrf.combine(quorum, 5) for quorum in combinations(parts, 5)}
    assert len(outputs) == 1
    assert dvrf.combine(parts, 5) in outputs


def test_the_beacon_is_the_groups_secret_times_the_hashed_point():
    group = dealt()
    secret = sum(int.from_bytes(group.secrets[i], "big") * _lagrange(i, range(1, 6)) for i in range(1, 6)) % dvrf.ORDER
    assert PrivateKey(secret.to_bytes(32, "big")).public_key.format() == group.group
    point = dvrf._hash_to_curve(ALPHA).multiply(secret.to_bytes(32, "big"))
    assert dvrf.combine(partials(group), 5) == tagged_hash("nodewire/beacon/1", point.format())


def _lagrange(i, indexes):
    factor = 1
    for j in indexes:
        if j != i:
            factor = factor * j * pow(j - i, -1, dvrf.ORDER) % dvrf.ORDER
    return factor


def test_fewer_than_the_threshold_are_refused_and_repeating_one_does_not_help():
    parts = partials(dealt())
    with pytest.raises(BadInput, match="partials"):
        dvrf.combine([*parts[:4], parts[0]], 5)


def test_too_few_shares_interpolate_to_something_else():
    group = dealt()
    few = {p.index: p.gamma for p in partials(group)[:4]}
    assert tagged_hash("nodewire/beacon/1", dvrf.interpolate(few, 0)) != dvrf.combine(partials(group), 5)


def test_every_partial_verifies_under_its_own_share_and_input_only():
    group = dealt()
    for part in partials(group):
        dvrf.verify(part, group.publics[part.index], ALPHA)
        with pytest.raises(BadSignature):
            dvrf.verify(part, group.publics[part.index % 7 + 1], ALPHA)
        with pytest.raises(BadSignature):
            dvrf.verify(part, group.publics[part.index], b"\x08" * 32)


def test_a_partial_of_a_wrong_share_is_refused():
    group = dealt()
    stranger = dvrf.prove(1, b"\x01" * 32, ALPHA)
    with pytest.raises(BadSignature):
        dvrf.verify(stranger, group.publics[1], ALPHA)


@settings(max_examples=40)
@given(st.sampled_from(["gamma", "c", "s"]), st.integers(0, 263), st.integers(1, 7))
def test_a_forged_proof_is_refused(field, bit, index):
    group = dealt()
    part = dvrf.prove(index, group.secrets[index], ALPHA)
    value = bytearray(getattr(part, field))
    value[bit // 8 % len(value)] ^= 1 << bit % 8
    with pytest.raises(BadSignature):
        dvrf.verify(replace(part, **{field: bytes(value)}), group.publics[index], ALPHA)


@pytest.mark.parametrize("scalar", [0, dvrf.ORDER, 2**256 - 1])
def test_scalars_out_of_range_are_refused(scalar):
    group = dealt()
    part = dvrf.prove(1, group.secrets[1], ALPHA)
    for field in ("c", "s"):
        with pytest.raises(BadSignature):
            dvrf.verify(replace(part, **{field: scalar.to_bytes(32, "big")}), group.publics[1], ALPHA)


def test_a_proof_for_another_point_with_the_same_share_is_refused():
    """The classic forgery: a proof that is sound for the base point but not for the claimed one."""
    group = dealt()
    part = dvrf.prove(1, group.secrets[1], ALPHA)
    other = PublicKey(part.gamma).multiply((2).to_bytes(32, "big")).format()
    with pytest.raises(BadSignature):
        dvrf.verify(replace(part, gamma=other), group.publics[1], ALPHA)


def test_a_dealer_refuses_a_threshold_that_cannot_be_met():
    for n, t in ((3, 4), (3, 0), (256, 2)):
        with pytest.raises(BadInput):
            dvrf.deal(n, t, stream("x"))


def vectors():
    cases = []
    for n, t in ((1, 1), (4, 3), (7, 5)):
        group = dvrf.deal(n, t, stream(f"vector {n}"))
        alpha = tagged_hash("test/alpha", bytes([n]))
        parts = partials(group, alpha)
        cases.append(
            {
                "n": n,
                "t": t,
                "alpha": alpha.hex(),
                "h": dvrf._hash_to_curve(alpha).format().hex(),
                "group": group.group.hex(),
                "shares": [{"secret": group.secrets[i].hex(), "public": group.publics[i].hex()} for i in group.secrets],
                "partials": [{"index": p.index, "gamma": p.gamma.hex(), "c": p.c.hex(), "s": p.s.hex()} for p in parts],
                "beacon": dvrf.combine(parts, t).hex(),
            }
        )
    return cases


def test_the_committed_vectors_come_out_the_same():
    assert vectors() == json.loads(VECTORS.read_text())


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1, sort_keys=True) + "\n")
