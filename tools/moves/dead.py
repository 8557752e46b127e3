"""Finds names of files, folders and modules that lead nowhere: `python tools/moves/dead.py`, after apply.py.

It reads pages, build files, and docstrings, comments and strings of Python files. Exit status 1 if there are any.
"""

from __future__ import annotations

import io
import posixpath
import re
import sys
import tokenize
from collections.abc import Iterator

from apply import DATA, OWN, PAGES, git
from rooms import ROOT

DOTTED = re.compile(r"(?<![\w./@\"-])(nodewire|kinds|simnet|processes|bench|tests)((?:\.[a-z_]\w*)+)(?!-\w)")
FILE = re.compile(r"(?<![\w./*{}<$-])((?:[\w-]+/)*[a-z_]\w*\.py)\b")
FOLDER = re.compile(
    r"(?<=`)((?:[a-z_]+/)+[a-z_]*)(?=`)|(?<![\w./-])((?:nodewire|bench|tests)(?:/[a-z_]+)+)/?(?![\w./*{<-])"
)
PATTERN = re.compile(r"NAME|NNNN|FOLDER")
"""Stands for a name to be chosen."""
OTHERS = {
    "research/glm_swarm_nvfp4_pipe.py", "inference/kernel.py", "awq/modules/linear/gemm.py", "_compile.py",
    "escaped.py", "textwrap.py", "bisect.py", "fnmatch.py", "shelve.py", "sched.py", "colorsys.py", "contextlib.py",
    "simnet.db", "bench.digits", "bench.bytes", "nodewire.select_rows", "nodewire.scatter_rows",
    "simnet.url", "coverage.py", "test_x.py", "build/site", "mine/", "mine/small",
    "bench/results", "model/", "cut/", "state/training/fedstr/requests",
}  # fmt: skip
"""Names of other software's files, of what a command makes, and of operators."""
GROUPS = {"nodewire.kinds", "nodewire.training", "nodewire.wallets", "nodewire.bond_holders"}
"""Groups of entry points."""


def main() -> int:
    tracked = git("ls-files").splitlines()
    files, folders = set(tracked), {""}
    for path in tracked:
        while path:
            path = posixpath.dirname(path)
            folders.add(path)
    bare = {posixpath.basename(path) for path in files}
    dead = []
    for path in tracked:
        is_page = path.endswith(PAGES) and not path.startswith(DATA)
        if path.startswith(OWN) or not (is_page or path.endswith(".py")):
            continue
        own = posixpath.dirname(path)
        bases = ["", "nodewire", own, posixpath.dirname(own)]
        text = (ROOT / path).read_text()
        for number, line in enumerate(text.splitlines(), 1) if is_page else prose(text):
            said = [name for name in FILE.findall(line) if not _is_file(name, bases, files, bare)]
            if is_page or "`" in line:
                names = [name for found in FOLDER.findall(line) for name in found if name]
                said += [name for name in names if not _is_folder(name, bases, folders)]
            said += ["".join(one) for one in DOTTED.findall(line) if not _is_module("".join(one), files, folders)]
            dead += [f"{path}:{number}: {name}" for name in said if name not in OTHERS and not PATTERN.search(name)]
    print(*dead, sep="\n" if dead else "")
    print(f"{len(dead)} names lead nowhere")
    return 1 if dead else 0


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a Python file's strings and comments, with their numbers."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)):
            yield from enumerate(token.string.splitlines(), token.start[0])


def _is_file(name: str, bases: list[str], files: set[str], bare: set[str]) -> bool:
    if "/" not in name:
        return name in bare
    return any(posixpath.join(base, name) in files for base in bases) or any(f.endswith(f"/{name}") for f in files)


def _is_folder(name: str, bases: list[str], folders: set[str]) -> bool:
    name = name.rstrip("/")
    return any(posixpath.join(base, name) in folders for base in bases) or any(f.endswith(f"/{name}") for f in folders)


def _is_module(name: str, files: set[str], folders: set[str]) -> bool:
    """Whether a dotted name is a module, a package, or something in one."""
    if name in GROUPS:
        return True
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        path = "/".join(parts[:end])
        if f"{path}.py" in files:
            return True
        if path in folders:
            rest = parts[end:]
            init = f"{path}/__init__.py"
            return not rest or (init in files and rest[0] in (ROOT / init).read_text())
    root = f"{parts[0]}/__init__.py"
    return root in files and parts[1] in (ROOT / root).read_text()


if __name__ == "__main__":
    sys.exit(main())
