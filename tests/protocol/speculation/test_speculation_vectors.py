"""tests/vectors/speculation1.json, rule by rule: what guesses become, what is refused, what stays uncomputed."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import pytest

from nodewire.errors import BadFrame
from nodewire.protocol.speculation.frame_meta import Fences, packed
from nodewire.protocol.speculation.plain_history import History
from nodewire.protocol.tensors.frame import Array, Frame

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "speculation1.json").read_text())


def by_rule(name):
    return pytest.mark.parametrize("case", VECTORS[name], ids=lambda case: case["rule"])


def tensor(rows):
    return (Array("uint8", (1, len(rows), 1), bytes(rows)),)


def begun(case):
    history = History("hidden", chunk=case["chunk"], lookahead=case["lookahead"])
    meta = {"pos": 0, "chunk": 0, "tokens": case["prompt"]}
    history.append(Frame("hidden", 0, tensor([0] * case["prompt"]), meta))
    return history


def frame(said):
    meta = {"pos": said["pos"], "chunk": said["chunk"], "epoch": said["epoch"], "tokens": len(said["rows"])}
    meta |= {name: packed(tuple(said[name])) for name in ("parents", "keep") if name in said}
    return Frame("hidden", said["seq"], tensor(said["rows"]), meta)


def taken(history, step):
    """The plain frames that a step makes final, but for the prompt."""
    if "close" in step:
        return [one for one in history.close(step["close"], step.get("positions")) if one.seq]
    history.append(frame(step["frame"]))
    return []


@by_rule("history")
def test_plain_history(case):
    history, plain, refused = begun(case), [], None
    for number, step in enumerate(case["steps"], start=1):
        try:
            plain += taken(history, step)
        except BadFrame as error:
            refused = error.field
            assert number == len(case["steps"])
    assert refused == case["refused"]
    assert [one.meta for one in plain] == [{"pos": p["pos"], "chunk": p["chunk"], "tokens": 1} for p in case["plain"]]
    assert [(one.seq, one.tensors[0].data[0]) for one in plain] == [(p["seq"], p["row"]) for p in case["plain"]]


@by_rule("claims")
def test_chunks_that_a_failed_job_claims(case):
    history = begun(case)
    for step in case["steps"]:
        taken(history, step)
    complete = takewhile(lambda chunk: not history.lacks(chunk) and history.is_past(chunk), range(9))
    assert list(complete) == case["claims"]


@by_rule("void")
def test_frames_that_stay_uncomputed(case):
    waiting = []
    for said in case["waiting"]:
        meta = {"pos": said["pos"], "epoch": said["epoch"]} | ({"keep": packed((0,))} if said["keep"] else {})
        waiting.append(Frame("hidden", said["seq"], tensor([1] * said["rows"]), meta))
    fences = Fences()
    for one in waiting:
        fences.note(one)
    assert [one.seq for one in waiting if fences.void(one)] == case["uncomputed"]
