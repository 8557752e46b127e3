"""`python -m tools.reference` writes docs/reference/cli.md and configuration.md anew, from typer and pydantic.

With --check it writes nothing, and exits with 1 where a page is not what the code says.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tools import reference_cli, reference_configuration

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"


def pages() -> dict[Path, str]:
    """The text of each generated page, by its path."""
    return {
        FOLDER / "cli.md": reference_cli.page(),
        FOLDER / "configuration.md": reference_configuration.page(),
    }


def main(arguments: list[str]) -> int:
    changed = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    for path in changed:
        if "--check" not in arguments:
            path.write_text(pages()[path])
        print(f"{path.name}: {'is not current; run `make docs`' if '--check' in arguments else 'written'}")
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
