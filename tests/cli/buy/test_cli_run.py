"""What `nodewire run` reads and refuses before it turns to the market, and what it says of what came."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nodewire.cli.buy.purchase import PurchaseOptions
from nodewire.cli.buy.run import _calls, _document, _line, _verified
from nodewire.customer.calls.arrays import numpy_of
from nodewire.errors import BadInput
from nodewire.protocol.tensors.frame import Array
from tests.cli.here import run_here

ADDRESS = "38840:" + "ab" * 32 + ":model"


@pytest.fixture
def files(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones((2, 2), np.float32), ids=np.arange(2))
    np.save(tmp_path / "mask.npy", np.ones(2, bool))
    return tmp_path


def test_files_are_one_call_and_the_one_of_a_npy_is_named_by_its_file_or_by_hand(files):
    for given, names in (
        (["a.npz", "mask.npy"], {"x", "ids", "mask"}),
        (["a.npz", "keep=mask.npy"], {"x", "ids", "keep"}),
    ):
        paths = [f"{name}{eq}{files / file}" for name, eq, file in (one.rpartition("=") for one in given)]
        [call] = _calls(paths, each=False)
        assert call.keys() == names
        assert all(isinstance(array, Array) for array in call.values())
    assert numpy_of(call["keep"]).tolist() == [True, True]
    assert [set(one) for one in _calls([str(files / "a.npz")] * 2, each=True)] == [{"x", "ids"}] * 2


def test_one_name_in_two_files_and_a_name_for_many_are_refused(files):
    with pytest.raises(BadInput, match="in two files"):
        _calls([str(files / "a.npz")] * 2, each=False)
    with pytest.raises(BadInput, match="2 tensors"):
        _calls([f"x={files / 'a.npz'}"], each=False)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ([ADDRESS], "--input"),
        ([ADDRESS, "--input", "a.npz", "--text", "a cat"], "--input"),
        (["38840:12:x", "--input", "a.npz"], "MANIFEST"),
        ([ADDRESS, "--input", "a.npz", "--out", "nowhere/y.safetensors"], "--out"),
        ([ADDRESS, "--input", "a.npz", "--report", "nowhere/y.json"], "--report"),
    ],
)
def test_a_mistake_is_told_before_any_file_is_read(tmp_path, arguments, field):
    done = run_here("run", *arguments, "--config", "none.toml", "--json", cwd=tmp_path)
    assert (done.returncode, json.loads(done.stdout)["error"]["field"]) == (1, field)


def verdict(outcome: str, request: str = "two") -> dict[str, str]:
    return {"request": request, "outcome": outcome}


@pytest.mark.parametrize(
    ("options", "verdicts", "said"),
    [
        ({}, [], "none"),
        ({"verify": True}, [], "pending"),
        ({"wait": True}, [], "undrawn"),
        ({"wait": True}, [verdict("pass")], "passed"),
        ({"wait": True}, [verdict("pass"), verdict("fail")], "failed"),
        ({"wait": True}, [verdict("fail", "one"), verdict("pass")], "passed"),  # it was made again
    ],
)
def test_whether_it_was_verified_is_said_in_a_word(options, verdicts, said):
    asked = PurchaseOptions.from_options("", None, **{"verify": False, "wait": False, **options})
    assert _verified({"verdicts": verdicts, "uncertified": [], "request": "two"}, asked) == said


def test_outputs_are_shown_by_their_first_numbers_and_as_plain_data():
    array = Array("float32", (2, 6), np.arange(12, dtype=np.float32).tobytes())
    assert _line("scores[red]", array).startswith(r"[bold]scores\[red][/]  float32 [2, 6]  [dim]+0.0000, +1.0000")
    assert _line("scores", array).endswith(" …[/]")
    assert _document(array, values=True)["values"] == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert _document(array, values=False) == {"dtype": "float32", "shape": [2, 6]}
    half = Array("bfloat16", (1,), b"\x80\x3f")
    assert _document(half, values=True) == {"dtype": "bfloat16", "shape": [1], "values": [1.0]}
