"""docs/reference/cli.md and configuration.md are what the code says."""

import pytest

from tools import reference, reference_cli, reference_configuration


@pytest.mark.parametrize("path", reference.pages(), ids=lambda path: path.name)
def test_a_generated_page_is_current(path):
    assert path.read_text() == reference.pages()[path], "run `make docs`, and commit what it writes"


def test_every_command_has_its_heading():
    headings = {line.strip("# `") for line in reference_cli.page().splitlines() if line.startswith("###")}
    assert headings == set(reference_cli.commands())
    assert {"nodewire generate", "nodewire wallet settle", "nodewire models pin"} <= headings


def test_the_source_says_something_of_every_field_of_every_file():
    silent = [
        f"{model.__name__}.{name}"
        for model, name in reference_configuration.fields()
        if not reference_configuration.said_of(model, name).endswith((".", "?"))
    ]
    assert not silent
