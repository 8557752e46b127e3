"""MkDocs' hook: the specification (NIPS.md, nips/) becomes part of the site, where it lies.

A page links to another by its path in the repository, so that the same link leads on in an editor and in the site.
A link to a file that is no page of the site stays as it is, and the strict build fails on it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_CODE = re.compile(r"^ *(`{3,}).*?^ *\1 *$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the specification to the site's files, under the paths that it has in the repository."""
    for path in (ROOT / "NIPS.md", *sorted((ROOT / "nips").glob("*.md"))):
        name = path.relative_to(ROOT).as_posix()
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    pages = sorted(file.src_uri for file in files.documentation_pages())
    config.nav = config.nav and with_folders(config.nav, pages)
    return files


def with_folders(nav: Any, pages: list[str]) -> Any:
    """The navigation with the pages of a folder in the place of its name, such as `adr/`."""
    if isinstance(nav, dict):
        return {title: with_folders(below, pages) for title, below in nav.items()}
    if not isinstance(nav, list):
        return nav
    spread: list[Any] = []
    for entry in nav:
        if isinstance(entry, str) and entry.endswith("/"):
            spread += [page for page in pages if page.startswith(entry) and page not in nav]
        else:
            spread.append(with_folders(entry, pages))
    return spread


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite links between files of the repository as links between pages of the site."""
    in_docs = Path(page.file.abs_src_path).is_relative_to(config.docs_dir)
    return linked(markdown, (DOCS if in_docs else "") + page.file.src_uri)


def linked(markdown: str, path: str) -> str:
    """The text of the file at `path` in the repository, with links as they are in the site."""
    begin = posixpath.dirname(_in_site(path))

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[0]))
        return posixpath.relpath(_in_site(target), begin or ".")

    parts, last = [], 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(rewritten, markdown[last : code.start()]), code[0]]
        last = code.end()
    return "".join([*parts, _LINK.sub(rewritten, markdown[last:])])


def _in_site(path: str) -> str:
    """Where the file at `path` in the repository is in the site."""
    return path.removeprefix(DOCS)
