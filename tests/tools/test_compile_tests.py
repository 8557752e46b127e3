"""Tests are compiled before a run, and again only when they have changed."""

from __future__ import annotations

import os

import pytest

from tools import compile_tests


@pytest.mark.process
def test_a_file_is_compiled_once_and_again_when_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.chdir(tmp_path)
    paths = [tmp_path / "test_one.py", tmp_path / "test_two.py"]
    for path in paths:
        path.write_text("def test_it():\n    assert True\n")
    assert compile_tests.uncompiled(tmp_path) == paths
    compile_tests.collect(paths, 2)
    assert compile_tests.uncompiled(tmp_path) == []
    kept_s = max(one.stat().st_mtime for one in tmp_path.glob("__pycache__/*.pyc"))
    os.utime(paths[1], (kept_s + 60, kept_s + 60))
    assert compile_tests.uncompiled(tmp_path) == [paths[1]]
