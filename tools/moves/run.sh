#!/usr/bin/env bash
# Moves all rooms to the map, on a clean tree, and proves it: `bash tools/moves/run.sh`. PYTHON names an interpreter with
# the extra dev beside it; .venv's by default.
#
# It stops at the first fault and says what to mend, in tools/moves/ and nowhere else. Where it stops after files were
# moved, `git reset --hard` and the next run begin anew. At its end the index holds the whole move, ready for
#   git commit -m "rooms: files, imports and contracts by the map"
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-.venv/bin/python}
BIN=$(dirname "$PYTHON")
export PYTHONPATH=$PWD OMP_NUM_THREADS=1
say() { printf '\033[1;36m»\033[0m %s\n' "$*"; }

say "files that lack a place, folders that are too large, circles"
"$PYTHON" tools/moves/check.py
say "move, rewrite, sort, format"
"$PYTHON" tools/moves/apply.py
"$PYTHON" -m tools.reference
git add docs/reference
say "no file differs beyond the map"
"$PYTHON" tools/moves/prove.py HEAD "$(git write-tree)"
say "no name leads nowhere"
"$PYTHON" tools/moves/dead.py
say "ruff, contracts, types"
"$BIN/ruff" check .
"$BIN/ruff" format --check .
"$BIN/typos"
"$BIN/lint-imports"
"$BIN/mypy"
say "the same tests are collected"
"$PYTHON" tools/moves/collect.py HEAD
say "done: $(git diff --cached --name-only --diff-filter=R -M HEAD | wc -l) renames are staged"
