"""Commands that a page shows exist, with the options that it gives them. A guide's can be pasted; some run here."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from nodewire.cli.commands import app

ROOT = Path(__file__).parents[2]
PAGES = [
    path for folder in ("tutorials", "how-to", "explanation") for path in sorted((ROOT / "docs" / folder).glob("*.md"))
]
GUIDES = [path for path in PAGES if path.parent.name != "explanation"]
PLACEHOLDER = re.compile(
    r"<[a-z_ -]+>|\b(?:ADDRESS|REQUEST|MODEL|FILE|FOLDER|DIR|NPUB|HOST|PORT|URL|WHO)\b|\.\.\.|…|path/to"
)
HERE = re.compile(r"^<!-- runs here -->\n```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block that needs no market, and no file but those of the blocks before it."""
WITHOUT_MARKET = [path for path in GUIDES if HERE.search(path.read_text())]


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


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guides_blocks_have_no_placeholder(page):
    shell = "".join(re.findall(r"^```(?:sh|bash)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    assert [line for line in shell.splitlines() if PLACEHOLDER.search(line)] == []


@pytest.mark.parametrize("page", WITHOUT_MARKET, ids=lambda page: page.stem)
def test_a_guides_blocks_that_need_no_market_run_as_they_stand(page, tmp_path):
    """In a folder like a checkout, where a user's own files are apart."""
    for name in ("demo", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "mine").mkdir()
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", "".join(HERE.findall(page.read_text()))],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_some_guides_have_blocks_that_run():
    assert {page.stem for page in WITHOUT_MARKET} >= {"place-tasks", "register", "run-a-swarm"}


def test_a_command_that_is_not_there_is_found():
    assert unknown(["wallet", "settle", "--config", "FILE"]) == []
    assert unknown(["wallet", "unsettle"]) == ["unsettle"]
    assert unknown(["relay", "--conjure"]) == ["--conjure"]
    assert unknown(["swarm", "new", "--node", "A"]) == ["--customer"]
    assert sum(len(shown(page)) for page in PAGES) > 40
