"""Hostile GGUF files: some of each kind."""

from __future__ import annotations

import random

import pytest

from bench.fuzz import fuzz_gguf, hostile_gguf
from bench.fuzz.fuzz_gguf import CASES, Cases, read_apart
from nodewire.errors import NodewireError

SOME = 40


@pytest.mark.timeout(300)
@pytest.mark.parametrize("arm", CASES)
async def test_some_end_in_typed_errors_that_name_a_part_or_are_as_said(arm):
    found = await read_apart(arm, 0, SOME, seed=11)
    assert [line for one in found for line in (*one["faults"], *one["violations"])] == []
    assert sum(one["cases"] for one in found) == SOME == sum(one["valid"] + one["named"] for one in found)
    assert any(one["typed"] for one in found)


def test_the_file_that_is_changed_is_valid_itself(tmp_path):
    cases = Cases("bytes", tmp_path)
    cases.path.write_bytes(hostile_gguf.small().encode())
    assert fuzz_gguf._read(cases, random.Random(1)) is None


def test_an_error_of_no_type_is_a_fault(tmp_path, monkeypatch):
    def fails(self, rng):
        raise ValueError("untyped")

    monkeypatch.setattr(Cases, "read", fails)
    at = tmp_path / "at"
    at.write_text("0")
    monkeypatch.setattr(fuzz_gguf, "WARM", 0)
    monkeypatch.setattr(fuzz_gguf.resource, "setrlimit", lambda *_: None)
    said = fuzz_gguf.in_process(Cases("header", tmp_path), 0, 3, 1, at)
    assert len(said["faults"]) == 3 and not issubclass(ValueError, NodewireError)
