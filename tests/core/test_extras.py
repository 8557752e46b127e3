"""Who lacks a library is told a command that brings it: nodewire is in no package index, and a stranger's might be."""

import tomllib
from pathlib import Path

import pytest

from nodewire.core.extras import EXTRA_OF, not_installed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("library", EXTRA_OF)
def test_every_extra_is_installed_from_nodewires_folder(library):
    extra = EXTRA_OF[library]
    assert extra in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    said = str(not_installed(library))
    assert f"in nodewire's folder run `.venv/bin/pip install '.[{extra}]'`" in said


def test_nothing_asks_a_package_index_for_nodewire():
    for path in (*(ROOT / "nodewire").rglob("*.py"), *(ROOT / "docs" / "how-to").glob("*.md")):
        said = path.read_text()
        assert "install nodewire[" not in said and "install 'nodewire[" not in said, path
        assert 'install "nodewire[' not in said, path
