"""The files around the code fit the code: pins, containers, the service unit."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
COMMANDS = {"relay", "oracle", "provider"}
ENTRYPOINTS = {"setup": ["python", "/setup.py"], "simnet": ["python", "-m", "simnet"]}


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return [r for r in map(Requirement, lines) if r.name != "nodewire"]


FILES = ("constraints.txt", "constraints-dev.txt", "constraints-interop.txt", "demo/constraints.txt")
PIN = re.compile(r"^([a-z0-9-]+)==([^ ;]+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / name).read_text()))


def versions(package: str) -> set[str]:
    """The versions that the lock files name, and for torch the one that is installed beside them."""
    found = {version for name in FILES for pinned, version in pins(name).items() if pinned == package}
    return found or set(re.findall(rf"{package}==([\w.+]+)", (ROOT / "Makefile").read_text()))


@pytest.mark.parametrize("requirement", requirements(), ids=lambda r: r.name)
def test_every_dependency_is_pinned_to_one_version_inside_its_range(requirement):
    (version,) = versions(canonicalize_name(requirement.name))
    assert requirement.specifier.contains(version)


@pytest.mark.parametrize("name", FILES)
def test_every_pinned_package_has_hashes(name):
    parts = re.split(PIN, (ROOT / name).read_text())[3::3]
    assert parts
    assert all("--hash=sha256:" in part for part in parts)


def test_torch_is_pinned_alike_everywhere_and_to_no_build():
    named = {
        version
        for name in ("Makefile", "Dockerfile")
        for version in re.findall(r"torch==([\w.+]+)", (ROOT / name).read_text())
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (metadata,) = project["tool"]["uv"]["dependency-metadata"]
    assert named == {metadata["version"]}
    assert "+" not in metadata["version"]


def test_the_image_is_based_on_a_digest():
    assert re.search(r"^FROM \S+@sha256:[0-9a-f]{64}$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def compose() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_names_only_what_exists():
    document = compose()
    for name, service in document["services"].items():
        assert set(service.get("depends_on", ())) <= set(document["services"]), name
        for volume in service.get("volumes", ()):
            source = volume["source"] if isinstance(volume, dict) else volume.split(":")[0]
            if source.startswith("./") and source != "./demo/model/pycoder":  # made by demo/model/make.py
                assert (ROOT / source).exists(), source
            elif not source.startswith("./"):
                assert source in document["volumes"], source


def test_compose_waits_only_for_services_that_say_when_they_are_ready():
    services = compose()["services"]
    for service in services.values():
        for other, wait in service.get("depends_on", {}).items():
            if wait["condition"] == "service_healthy":
                assert "healthcheck" in services[other], other
            else:
                assert services[other]["restart"] == "no", other


def test_compose_runs_nodewires_commands_with_keys_apart():
    services = compose()["services"]
    assert {name: s["entrypoint"] for name, s in services.items() if "entrypoint" in s} == ENTRYPOINTS
    commands = [s["command"] for name, s in services.items() if name not in ENTRYPOINTS and "command" in s]
    assert {command[0] for command in commands} == COMMANDS
    folders = [
        volume["volume"]["subpath"] for s in services.values() for volume in s["volumes"] if isinstance(volume, dict)
    ]
    assert len(folders) == len(set(folders)) == 9


@pytest.mark.parametrize("daemon", ["provider", "gateway"])
def test_the_service_units_start_daemons_without_privileges(daemon):
    unit = (ROOT / "deploy" / f"nodewire-{daemon}.service").read_text()
    assert re.search(rf"^ExecStart=/\S+/nodewire {daemon} --config /etc/\S+\.toml$", unit, re.M)
    assert "NoNewPrivileges=yes" in unit
    assert not re.search(r"^User=root", unit, re.M)


def test_what_a_customer_subscribes_to_ends_with_its_job():
    """A relay allows a connection so many subscriptions (ours: 200); one that nobody closes outlives its reader."""
    for folder in (ROOT / "nodewire" / "customer", ROOT / "nodewire" / "training" / "customer"):
        for path in folder.rglob("*.py"):
            assert not re.search(r"async for .* in .*\.subscribe\(", path.read_text()), path


PACKAGES = ("nodewire", "relay", "kinds", "simnet")


def test_every_file_of_the_packages_is_installed_their_types_marks_among_them(tmp_path):
    """Types count only where `py.typed` is installed. Other files that are no Python setuptools would leave out."""
    build = "from setuptools import setup; setup()"
    command = ["egg_info", "--egg-base", str(tmp_path), "build_py", "--build-lib", str(tmp_path / "lib")]
    subprocess.run([sys.executable, "-c", build, "-q", *command], cwd=ROOT, check=True)
    built = {str(path.relative_to(tmp_path / "lib")) for path in (tmp_path / "lib").rglob("*") if path.is_file()}
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, check=True, capture_output=True, text=True)
    assert {f"{name}/py.typed" for name in PACKAGES} <= built
    assert set(listed.stdout.split()) <= built


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_a_page_for_developers_names_only_what_exists(page):
    text = (ROOT / page).read_text()
    paths = re.findall(r"`((?:nodewire|relay|kinds|simnet|tests|bench|docs|nips|demo|deploy)/[\w./-]*)`", text)
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    assert links
    for path in (*paths, *links):
        assert re.search("NAME|NN", path) or (ROOT / path).exists(), path
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) <= targets


ROOMS = (*PACKAGES, "processes", "bench", "demo", "tests")
MAX_FILES = 15
MAX_BODY_LINES = 60
"""Signatures and docstrings do not count: the parameters of a Typer command are its options."""


def bodies(path: Path) -> Iterator[tuple[str, int]]:
    """Each function of a file, and the lines from its first statement after the docstring to its end."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = node.end_lineno - first[0].lineno + 1 if first else 0
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", lines


@pytest.mark.parametrize("room", ROOMS)
def test_a_folder_has_at_most_15_modules(room):
    modules = (path for path in (ROOT / room).rglob("*.py") if path.name != "__init__.py")
    sizes = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    assert sizes
    assert [f"{folder}: {size} modules" for folder, size in sizes.items() if size > MAX_FILES] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_functions_body_has_at_most_60_lines(room):
    found = [body for path in sorted((ROOT / room).rglob("*.py")) for body in bodies(path)]
    assert found
    assert [f"{name}: {lines} lines" for name, lines in found if lines > MAX_BODY_LINES] == []
