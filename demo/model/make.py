"""Trains the demo's decoder and its draft model anew, on a market of this machine: `make checkpoint`.

    python -m demo.model.make [--out demo/model/pycoder] [--folder .checkpoint] [--only draft]

What is trained on is the sources of Python's standard library; how, the recipes beside this script. A relay, a
Lightning network, two trainers and the customer are processes started by public commands. Of each model the transcript
is computed again before it is taken; it comes to stand beside the weights, whose hash it ends with. Two CPU cores take
about an hour.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from nodewire.training.protocol.recipe import Recipe
from processes.progress import say
from processes.trainers import Trainers

HERE = Path(__file__).parent
RECIPES = {"pycoder": HERE / "pycoder.toml", "draft": HERE / "draft.toml"}
SHARDS = 2
LEFT_OUT = {"site-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data", "__pycache__"}


def sources(folder: Path) -> None:
    """The standard library's modules, tests left out, as files of one folder."""
    folder.mkdir()
    root = Path(os.__file__).parent
    for path in root.rglob("*.py"):
        name = path.relative_to(root)
        text = path.read_text("utf-8", errors="ignore")
        if text.strip() and not LEFT_OUT & set(name.parts):
            (folder / ".".join(name.parts)).write_text(text, "utf-8")


def check_tokenizer(tokenizer: Path) -> None:
    """The recipes cite the tokenizer that this Python's library gives; another's gives another."""
    sha256 = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    for path in RECIPES.values():
        cited = getattr(Recipe.from_toml(path.read_text()).family, "tokenizer", None)
        if cited is None or cited.sha256 != sha256:
            raise SystemExit(
                f"{path} cites another tokenizer than this Python's library gives: sha256 = {sha256}, bytes = "
                f"{tokenizer.stat().st_size}"
            )


async def nodewire(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "nodewire.cli", *arguments)
    if await process.wait():
        raise SystemExit(f"nodewire {' '.join(arguments)}: exit {process.returncode}")


async def made(name: str, folder: Path, config: Path) -> Path:
    """Train one model and compute its transcript again; the folder of its results."""
    out = folder / name
    given = ("--data", str(folder / "data"), "--start", str(folder / "start"), "--config", str(config))
    bought = ("--shards", str(SHARDS), "--budget", "1000sat", "--out", str(out))
    await nodewire("train", str(RECIPES[name]), *given, *bought)
    await nodewire("audit", str(out / "transcript.json"), *given)
    return out


def keep(made: Path, out: Path) -> dict[str, Any]:
    """Put a model where it stands in the repository; what is said of its training."""
    out.mkdir(exist_ok=True)
    for file in (made / "model").iterdir():
        shutil.copy(file, out / file.name)
    shutil.copy(made / "transcript.json", out / "transcript.json")
    summary = json.loads((made / "summary.json").read_text())
    return {name: summary[name] for name in ("digest", "rounds", "losses", "up_bytes", "down_bytes", "paid_msat")}


async def run(options: argparse.Namespace) -> None:
    folder: Path = options.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "start").mkdir(parents=True)
    sources(folder / "data")
    await nodewire("vocabulary", str(folder / "data"), "--out", str(folder / "start"), "--size", "3072")
    check_tokenizer(folder / "start" / "tokenizer.json")
    async with Trainers(folder / "market", providers=SHARDS, worker_memory="3GB") as market:
        config = await market.customer_config("customer")
        with config.open("a") as file:
            file.write(f'[worker]\nmemory = "3GB"\nthreads = {os.cpu_count()}\n')
        for name in [options.only] if options.only else RECIPES:
            say(f"{name}: {RECIPES[name]}")
            trained = await made(name, folder, config)
            said = keep(trained, options.out if name == "pycoder" else options.out / name)
            print(json.dumps({name: said}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "pycoder")
    parser.add_argument("--folder", type=Path, default=Path(".checkpoint"), help="for the market; begun anew")
    parser.add_argument("--only", choices=RECIPES, help="one of the two models")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
