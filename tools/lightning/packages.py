"""What the network is made of: Debian packages and Python packages, each of one version and one SHA-256.

They come from where apt and pip of this machine are configured to look. Nothing is installed on the machine: Debian's
packages are unpacked into a folder and run with the C library that comes with them, so the machine's own may be older.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PLUGIN = HERE.parent.parent / "plugin/electrum/nodewire"
PINS = HERE / "packages.txt"
CONSTRAINTS = HERE / "constraints.txt"
SUITE = "sid"
"""Of Debian. No other has a bitcoind."""
LIBRARIES = "usr/lib/x86_64-linux-gnu"


class SetupError(Exception):
    """The network cannot be set up. It says what happened and what to do."""


@dataclass(frozen=True, slots=True)
class Pin:
    """One Debian package, as a line of packages.txt."""

    name: str
    version: str
    architecture: str
    sha256: str

    @property
    def file(self) -> str:
        """As apt names what it downloads."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


def say(text: str) -> None:
    print(f"» {text}", file=sys.stderr, flush=True)


def pins() -> list[Pin]:
    return [Pin(*line.split()) for line in PINS.read_text().splitlines() if line and not line.startswith("#")]


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs, in `folder`."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "debian"

    @property
    def python(self) -> Path:
        """That of Electrum and of the Electrum server, in a virtual environment of its own."""
        return self.folder / "venv/bin/python"

    @property
    def packages(self) -> Path:
        return self.root / "usr/lib/python3/dist-packages"

    def bitcoind(self) -> list[str]:
        libraries = self.root / LIBRARIES
        return [
            str(libraries / "ld-linux-x86-64.so.2"),
            "--library-path",
            str(libraries),
            str(self.root / "usr/bin/bitcoind"),
        ]

    def electrum_server(self) -> list[str]:
        return [str(self.python), str(self.python.with_name("electrumx_server"))]

    def electrum(self) -> list[str]:
        return [str(self.python), str(self.root / "usr/bin/electrum"), "--regtest"]

    def electrum_environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.packages)}

    def set_up(self) -> None:
        """Bring the programs here, unless these very versions are.

        Raises:
            SetupError: the machine is none that they run on, or a package cannot be had.

        """
        done, wanted = self.folder / "done", _digest(PINS, CONSTRAINTS)
        if not done.exists() or done.read_text() != wanted:
            if platform.machine() != "x86_64" or shutil.which("apt-get") is None:
                raise SetupError(
                    "the network needs Debian or Ubuntu on x86-64, with apt: run it there, or in a container"
                )
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self._unpack()
            self._make_venv()
            done.write_text(wanted)
        # The plugin is of this checkout, and may be newer than the rest.
        shutil.copytree(PLUGIN, self.packages / "electrum/plugins/nodewire", dirs_exist_ok=True)

    def _unpack(self) -> None:
        wanted = pins()
        say(f"Debian's packages ({len(wanted)})")
        files = Apt(self.folder / "apt").download([f"{one.name}={one.version}" for one in wanted])
        for one in wanted:
            file = files / one.file
            found = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "no file"
            if found != one.sha256:
                raise SetupError(f"{one.file} is {found}, not {one.sha256} as {PINS.name} has it: it is not used")
            _run(["dpkg-deb", "-x", str(file), str(self.root)], "cannot be unpacked: is dpkg there?")
        library = self.root / LIBRARIES / "libsecp256k1.so.6"
        shutil.copy(library, self.packages / "electrum_ecc/libsecp256k1.so.6")  # where it is looked for first
        shutil.rmtree(files)

    def _make_venv(self) -> None:
        say("Python packages")
        _run([sys.executable, "-m", "venv", str(self.folder / "venv")], "cannot be made: is python3-venv there?")
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        remedy = "cannot be installed: can pip reach an index?"
        _run([*pip, "--no-deps", "--require-hashes", "-r", str(CONSTRAINTS)], remedy)
        if sys.version_info >= (3, 13):  # plyvel is not built for it, and this one that goes on with it is
            (place,) = (self.folder / "venv/lib").glob("python*/site-packages")
            (place / "plyvel.py").write_text("from plyvel_next import *\n")


class Apt:
    """apt with state of its own in `folder`, which asks the machine's Debian mirror for `SUITE`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def download(self, names: list[str]) -> Path:
        """The folder with the files of these packages ("name=version", or "name").

        Raises:
            SetupError: no mirror is configured, or it does not have them.

        """
        for name in ("lists/partial", "cache/archives/partial", "files"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / "status").touch()
        (self._folder / "sources.list").write_text(f"deb {_mirror()} {SUITE} main\n")
        # What the machine says of proxies and certificates counts here. Its hooks do not.
        acquire = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=True).stdout
        lines = [line for line in acquire.splitlines() if line.startswith("Acquire::")]
        (self._folder / "apt.conf").write_text("\n".join([*lines, *self._settings()]) + "\n")
        environment = {**os.environ, "APT_CONFIG": str(self._folder / "apt.conf")}
        _run(["apt-get", "-q", "update"], "the mirror does not answer", environment)
        remedy = f"the mirror no longer has them: `python -m tools.lightning pin` takes today's {SUITE}"
        _run(["apt-get", "-q", "download", *names], remedy, environment, self._folder / "files")
        return self._folder / "files"

    def _settings(self) -> Iterator[str]:
        yield 'Dir::Etc::main "/dev/null"; Dir::Etc::parts "/dev/null";'
        yield f'Dir::Etc::sourcelist "{self._folder}/sources.list"; Dir::Etc::sourceparts "/dev/null";'
        yield 'Dir::Etc::preferences "/dev/null"; Dir::Etc::preferencesparts "/dev/null";'
        yield f'Dir::State::lists "{self._folder}/lists"; Dir::State::status "{self._folder}/status";'
        yield f'Dir::Cache "{self._folder}/cache"; APT::Architecture "amd64"; APT::Architectures "amd64";'
        yield 'APT::Sandbox::User ""; Acquire::Languages "none";'


def pin() -> None:
    """Write `PINS` anew: the same packages in the versions that the suite has today."""
    names = [one.name for one in pins()]
    files = Apt(Path("build/lightning-pin").absolute()).download(names)
    head = [line for line in PINS.read_text().splitlines() if line.startswith("#")]
    lines = []
    for file in sorted(files.glob("*.deb")):
        name, version, architecture = file.stem.rsplit("_", 2)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        lines.append(f"{name} {version.replace('%3a', ':')} {architecture} {digest}")
    if len(lines) != len(names):
        raise SetupError(f"{len(names)} packages are wanted and {len(lines)} came: one has another name in {SUITE} now")
    PINS.write_text("\n".join([*head, *lines]) + "\n")


def _mirror() -> str:
    """The Debian mirror that apt is configured to use."""
    listed = ["apt-get", "indextargets", "--format", "$(COMPONENT) $(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.split("\n")
    uris = [line.partition(" ")[2] for line in found if line.startswith("main ") and "debian" in line]
    plain = [uri for uri in uris if "security" not in uri]
    if not plain:
        raise SetupError("apt has no Debian mirror configured: put one into /etc/apt/sources.list.d, as debian.sources")
    return plain[0]


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _run(
    command: list[str], remedy: str, environment: dict[str, str] | None = None, folder: Path | None = None
) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    if ran.returncode:
        said = (ran.stderr or ran.stdout).strip()[-800:]
        raise SetupError(f"{' '.join(command[:3])} failed ({remedy}): {said}")
