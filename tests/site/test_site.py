"""The documentation is a site without a warning, and what it names is there: pages, anchors, files."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tools.site_pages import linked

ROOT = Path(__file__).parents[2]
HISTORY = ("docs/adr/", "docs/reference/measurement-history.md")
"""Pages that tell what was, and may name files of then."""
PAGES = sorted(
    path
    for path in (*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "SECURITY.md")
    if not path.relative_to(ROOT).as_posix().startswith(HISTORY)
)
SOURCES = ("nodewire", "kinds", "relay", "simnet", "processes", "bench", "demo", "tests", "docs", "tools", "deploy")


def built(folder: Path, config: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", config, "-d", folder]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False
    )


def test_the_site_is_built_without_a_warning(tmp_path):
    done = built(tmp_path / "site", ROOT / "mkdocs.yml")
    assert done.returncode == 0, done.stderr
    for page in ("index.html", "nips/21-links/index.html", "NIPS/index.html", "reference/cli/index.html"):
        assert (tmp_path / "site" / page).exists(), page


@pytest.mark.parametrize("link", ["gone.md", "../reference/cli.md#nowhere", "../../nips/21-links.md#nowhere"])
def test_a_dead_link_or_anchor_fails_the_build(tmp_path, link):
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "docs" / "reference").mkdir()
    (tmp_path / "docs" / "reference" / "cli.md").write_text("# Commands\n")
    (tmp_path / "docs" / "how-to" / "page.md").write_text(f"[x]({link})\n")
    config = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(config.replace("tools/site_pages.py", f"{ROOT}/tools/site_pages.py"))
    done = built(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert link.rpartition("/")[2].partition("#")[2] in done.stderr


def test_a_link_of_the_repository_is_one_of_the_site():
    assert linked("[a](../../nips/21-links.md#rows)", "docs/explanation/wire.md") == "[a](../nips/21-links.md#rows)"
    assert linked("[a](../docs/adr/0002.md)", "nips/21-links.md") == "[a](../adr/0002.md)"
    assert linked("[a](nips/21-links.md) `[b](docs/c.md)`", "NIPS.md") == "[a](nips/21-links.md) `[b](docs/c.md)`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_files_that_exist(page):
    named = set(
        re.findall(rf"`((?:{'|'.join(SOURCES)})/[\w./-]*\w\.(?:py|md|toml|json|svg|service))`", page.read_text())
    )
    assert not sorted(name for name in named if not (ROOT / name).exists())


def test_what_the_code_says_of_the_documentation_is_there():
    """Error texts, help and docstrings that send somebody to a page."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = [ROOT / name for name in files.split("\0") if name.endswith((".py", ".service", "Makefile", ".md", ".toml"))]
    named: dict[str, str] = {}
    for path in ours:
        if path.exists() and not path.relative_to(ROOT).as_posix().startswith((*HISTORY, "tests/site/")):
            for name in re.findall(r"(?<![\w/.])docs/[\w./-]*\w\.(?:md|svg|toml)", path.read_text()):
                named.setdefault(name, path.name)
    assert named
    assert not {name: where for name, where in named.items() if not (ROOT / name).exists()}


LIMITS = {"architecture": 2_500} | dict.fromkeys(
    (
        "assignment",
        "verification",
        "wire",
        "speculation",
        "recovery",
        "payment",
        "prices",
        "wallets",
        "training",
        "sandbox",
    ),
    1_500,
)


@pytest.mark.parametrize("name", LIMITS)
def test_a_page_of_explanation_is_short(name):
    assert len((ROOT / "docs" / "explanation" / f"{name}.md").read_text().split()) <= LIMITS[name]


def test_a_figure_names_a_command_that_exists():
    page = (ROOT / "docs" / "reference" / "measurements.md").read_text()
    rows = [line.split("|")[-2].strip().strip("`") for line in page.splitlines() if line.startswith("| [")]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(rows) > 20
    for command in rows:
        made = re.fullmatch(r"make ([a-z-]+)", command)
        run = re.match(r"python -m bench\.([\w.]+)", command)
        assert (
            command == "none is kept"
            or (made and made[1] in targets)
            or (run and find_spec(f"bench.{run[1]}") is not None)
        ), command


def test_a_decision_has_its_parts():
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert records
    for path in records:
        headings = re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE)
        assert "Decision" in headings, path.name
