"""`import nodewire` shows the Python API and costs next to nothing."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import nodewire

ROOT = Path(__file__).parent.parent


def test_every_public_name_is_there():
    assert {name for name in nodewire.__all__ if getattr(nodewire, name, None) is None} == set()
    assert set(nodewire.__all__) <= set(dir(nodewire))
    with pytest.raises(AttributeError, match="Seller"):
        nodewire.Seller  # noqa: B018


def test_the_version_is_the_packages():
    assert nodewire.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_importing_it_imports_no_room():
    code = "import sys, nodewire; print([m for m in sys.modules if m.startswith('nodewire.')])"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
