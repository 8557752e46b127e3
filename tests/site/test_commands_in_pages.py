"""Commands that a page shows exist, with the options that it gives them."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from nodewire.cli.commands import app

ROOT = Path(__file__).parents[2]
PAGES = [
    path for folder in ("tutorials", "how-to", "explanation") for path in sorted((ROOT / "docs" / folder).glob("*.md"))
]


def shown(page: Path) -> list[list[str]]:
    """The words of each line of a shell block that begins with `nodewire`; what is optional counts as given."""
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)).replace("\\\n", " ")
    lines = [line.strip() for line in blocks.splitlines() if line.startswith("nodewire ")]
    return [shlex.split(line.replace("[", "").replace("]", ""), comments=True)[1:] for line in lines]


def unknown(words: list[str]) -> list[str]:
    """The words that are no command, or no option of it; and options that it needs and has not."""
    command = typer.main.get_command(app)
    while words and (below := getattr(command, "commands", None)):
        if words[0] not in below:
            if command.invoke_without_command and words[0].startswith("-"):
                break
            return words[:1]
        command, words = below[words[0]], words[1:]
    options = {"--help"} | {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
    needed = [one for one in command.params if one.required and one.param_type_name == "option"]
    return sorted(given - options) + [one.opts[0] for one in needed if not given & set(one.opts)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_commands_that_exist(page):
    assert not [words for words in shown(page) if unknown(words)]


def test_a_command_that_is_not_there_is_found():
    assert unknown(["wallet", "settle", "--config", "FILE"]) == []
    assert unknown(["wallet", "unsettle"]) == ["unsettle"]
    assert unknown(["relay", "--conjure"]) == ["--conjure"]
    assert unknown(["swarm", "new", "--node", "A"]) == ["--customer"]
    assert sum(len(shown(page)) for page in PAGES) > 40
