"""A node's part of a swarm's model: the folder is cut by the file in a process of its own, which alone loads torch.

Every node cuts its own copy, whole: so that all that it does not hold is hashed, and another copy is another manifest.
What was cut stays until the model's files, or the file, change.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any

import orjson

from nodewire.cli.common.manifest_file import read_manifest
from nodewire.errors import NodewireError, NotFound, WorkerFailed, first_of, from_dict
from nodewire.gguf import model as gguf
from nodewire.protocol.market.static_swarm import Swarm
from nodewire.protocol.model.manifest import Manifest

_MANIFEST = "manifest.msgpack"
_KEPT_CHARS = 16


async def cut(swarm: Swarm, public: str, model: Path, under: Path) -> tuple[Manifest, dict[str, Path], Path]:
    """The manifest of the model in a folder, the blobs of this node's tasks, and the folder `under` which they are.

    Raises:
        NotFound: there is no model in the folder.
        BadInput, BadTask, TooLarge, Unsupported ...: it cannot be cut, or not so.

    """
    if not gguf.is_gguf(model) and not (model / "config.json").is_file():
        raise NotFound(str(model), "holds no config.json: name this machine's copy of the model's folder by --model")
    kept = [task for task, node in swarm.places().items() if node == public]
    folder = under / _stamp(swarm, kept, model)
    if not (folder / _MANIFEST).is_file():
        shutil.rmtree(under, ignore_errors=True)  # what was cut before, or half
        folder.mkdir(parents=True)
        await _in_process(swarm, kept, model, folder)
    manifest = read_manifest(folder)
    cited = [blob for task in manifest.tasks if task.name in kept for blob in (task.program, *task.weights)]
    cited += [manifest.chat] if manifest.chat is not None else []
    return manifest, {blob.sha256: folder / blob.sha256 for blob in cited}, folder


def _stamp(swarm: Swarm, kept: list[str], model: Path) -> str:
    """What a cut is made of: the file's words, and which files lie in the folder, as far as that can be told unread."""
    lie = gguf.files_of(model) if gguf.is_gguf(model) else [one for one in model.iterdir() if one.is_file()]
    files = sorted((one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in lie)
    said = swarm.model_copy(update={"manifest": None}).document()
    return hashlib.sha256(orjson.dumps([said, kept, str(model.resolve()), files])).hexdigest()[:_KEPT_CHARS]


async def _in_process(swarm: Swarm, kept: list[str], model: Path, folder: Path) -> None:
    asked = orjson.dumps({"swarm": swarm.to_json(), "kept": kept, "model": str(model), "out": str(folder)})
    command = [sys.executable, "-P", "-m", "nodewire.cli.swarm.swarm_cut", asked.decode()]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        out, _ = await process.communicate()
    except BaseException:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        if out.strip():
            raise from_dict(orjson.loads(out))
        raise WorkerFailed("model", f"cutting it ended with {process.returncode}; what it said stands above")


def _cut(asked: dict[str, Any]) -> None:
    from nodewire.chat.folder import chat_template
    from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
    from nodewire.weights.blob_folder import BlobFolder

    swarm, model, out = Swarm.parse(asked["swarm"]), Path(asked["model"]), Path(asked["out"])
    template = chat_template(model)
    made = split_decoder(
        model,
        None,
        out,
        slots=swarm.slots,
        split=swarm.borders or len(swarm.nodes),
        kept=asked["kept"],
        name=swarm.name,
        options=DecoderOptions(context=swarm.context, dtype=swarm.dtype),
    )
    manifest = made.manifest
    if template is not None:
        chat = BlobFolder(out).blob(template.pack())
        manifest = Manifest.from_document({**manifest.document(), "chat": chat.document()})
    for line in made.report:
        print(line, file=sys.stderr)
    partial = out / ".manifest"
    partial.write_bytes(manifest.pack())
    partial.rename(out / _MANIFEST)


if __name__ == "__main__":
    try:
        _cut(orjson.loads(sys.argv[1]))
    except Exception as error:
        first = first_of(error)
        if not isinstance(first, NodewireError):
            raise
        sys.stdout.buffer.write(orjson.dumps(first.as_dict()))
        sys.exit(1)
