"""Which engine cuts the model in a folder, and what is said of it once it is cut."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from nodewire.cli.common.registration_folder import is_registered, registration_in
from nodewire.errors import BadInput, NotFound, OverMemory, TooLarge, Unsupported
from nodewire.gguf import model as gguf
from nodewire.kind import Registration, Say, TaskSize
from nodewire.protocol.model.chat_template import ChatTemplate
from nodewire.protocol.model.layer_ranges import Border
from nodewire.protocol.model.manifest import CUSTOMER, Manifest

_ENCODERS = (
    *("BertModel", "BertForMaskedLM", "RobertaModel", "XLMRobertaModel", "MPNetModel", "MPNetForMaskedLM"),
    *("ModernBertModel", "NomicBertModel"),
)
_MAX_CONFIG_BYTES = 2**20
_ANY = "any module is cut from Python by `nodewire.register` (docs/how-to/register.md)"
_REMEDY = "name them with --most (--most sequence=64), or a larger --target-vram"


@dataclass(frozen=True, slots=True)
class CutOptions:
    """How a folder is to be cut. `most` as `nodewire.register` has it."""

    target_bytes: int
    name: str
    slots: int = 4
    as_tensors: bool = False
    expert_groups: int = 1
    most: Mapping[str, int] = field(default_factory=dict)
    split: tuple[Border, ...] = ()
    """Of a decoder: its stages' layers, in place of a target."""
    lend: bool = False
    """Of a decoder: whether its end stages have embedding and head."""
    context: int | None = None
    """Positions of a decoder's session; `split_decoder` chooses them if they are not given."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """The dtype that a decoder computes in; the checkpoint's if it is not given."""
    kv: Literal["int8"] | None = None
    """The dtype of a decoder's keys and values; the arithmetic's if it is not given."""

    @property
    def of_decoders(self) -> str:
        """The first option that only decoders have, if one is given."""
        return next((name for name in _OTHERS if getattr(self, name.removeprefix("--"))), "")


_OTHERS = {
    "--lend": "others have no embedding and head to lend",
    "--split": "others are cut by --target-vram",
    "--context": "of what is called with tensors --most says how much a call holds",
    "--dtype": "others compute in the dtypes of their own operators",
    "--kv": "others keep no keys and values from call to call",
}
"""Options that only decoders have, and how it is with others."""


def cut(folder: Path, asked: CutOptions, out: Path | None, say: Say = lambda _: None) -> Registration:
    """The model in a folder as tasks, whose blobs are written into `out`; without it, as a dry run.

    torch is imported here, not before. Raises as the engine that the folder's architecture belongs to.
    """
    if is_registered(folder):
        return registration_in(folder, asked.name)
    from nodewire.llm.families import ARCHITECTURES

    if (named := asked.of_decoders) and (asked.as_tensors or not _is_decoder(folder)):
        raise BadInput(named, f"is for decoders that generate text: {_OTHERS[named]}")
    target, name, slots = asked.target_bytes, asked.name, asked.slots
    if (folder / "recipe.json").is_file() and not (folder / "config.json").exists():  # as `train` leaves a classifier
        from nodewire.graph.registration.classifier import split_classifier

        _check_plain(asked)
        return split_classifier(folder, target, out, slots=slots, name=name)
    if gguf.is_gguf(folder):
        if asked.as_tensors:
            raise BadInput(
                "--as-tensors", "a GGUF file holds no module to be cut at its operators; it is cut by layers"
            )
        _check_plain(asked)
        return _decoder(folder, asked, out)
    is_meta = (folder / "params.json").is_file() and not (folder / "config.json").exists()  # Llama in Meta's own layout
    architecture = "" if is_meta else _architecture(folder)
    speaks = is_meta or architecture in ARCHITECTURES
    if (speaks or architecture in _ENCODERS) and not asked.as_tensors:
        _check_plain(asked)
        if out is not None and not is_meta and not (folder / "tokenizer.json").is_file():
            raise NotFound("tokenizer.json", f"not in {folder}: text needs one; or --as-tensors cuts it without")
        if speaks:
            return _decoder(folder, asked, out)
        from nodewire.graph.registration.encoder_splitter import split_encoder

        return split_encoder(folder, target, out, slots=slots, name=name)
    from nodewire.graph.registration.directory_splitter import split_directory
    from nodewire.graph.registration.register import SMALLER, TaskOptions

    options = TaskOptions(slots=slots, expert_groups=asked.expert_groups)
    try:
        return split_directory(folder, target, out, name=name, options=options, most=asked.most, say=say)
    except OverMemory as error:
        if not error.reason.endswith(SMALLER):
            raise
        raise OverMemory(error.field, f"{error.reason}: {_REMEDY}") from None
    except Unsupported as error:
        raise Unsupported(error.field, f"{error.reason}; {_remedy(architecture, error.field)}") from None


def plan(folder: Path, asked: CutOptions) -> Registration | None:
    """The registration that `cut` will make, without hashes of weights. Of decoders, and of what is cut already.

    None of others, which must be traced to know it. Raises as `cut`.
    """
    return cut(folder, asked, None) if is_registered(folder) or (_is_decoder(folder) and not asked.as_tensors) else None


def _remedy(architecture: str, field: str) -> str:
    """The remedy for a model that is not cut by its operators."""
    from nodewire.llm.families import ARCHITECTURES

    if field != "architectures":
        return _ANY
    if architecture in ARCHITECTURES:
        return "it is cut to generate text without --as-tensors"
    texts = ", ".join(sorted(ARCHITECTURES))
    return f"those that generate text are {texts}; those that embed it {', '.join(_ENCODERS)}; {_ANY}"


def _decoder(folder: Path, asked: CutOptions, out: Path | None) -> Registration:
    from nodewire.chat.folder import chat_template
    from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder

    template = chat_template(folder)  # before the work: it may be one that cannot be published
    made = split_decoder(
        folder,
        asked.target_bytes,
        out,
        slots=asked.slots,
        split=asked.split,
        name=asked.name,
        options=DecoderOptions(context=asked.context, dtype=asked.dtype, kv=asked.kv, lend=asked.lend),
    )
    return made if template is None else _with_chat(made, template, out)


def _is_decoder(folder: Path) -> bool:
    from nodewire.llm.families import ARCHITECTURES

    if gguf.is_gguf(folder):
        return True
    if not (folder / "config.json").exists():
        return (folder / "params.json").is_file()
    return _architecture(folder) in ARCHITECTURES


def _check_plain(asked: CutOptions) -> None:
    """Raises BadInput: what is cut by its layers has no sizes to choose, and keeps its experts together."""
    if asked.expert_groups > 1:
        raise BadInput(
            "--expert-groups", "what is cut so keeps its experts together; --as-tensors cuts any model's operators"
        )
    if asked.most:
        raise BadInput("--most", "is for what is called with tensors; --as-tensors cuts any model so")


def _architecture(folder: Path) -> str:
    file = folder / "config.json"
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise NotFound(str(folder), "holds no config.json: name a model's folder or a GGUF file") from error
    if len(data) > _MAX_CONFIG_BYTES:
        raise TooLarge(str(file), f"more than {_MAX_CONFIG_BYTES} bytes")
    try:
        return str(jsonlib.loads(data)["architectures"][0])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise BadInput(
            str(file), 'names no architecture. Add its class of transformers: "architectures": ["LlamaForCausalLM"]'
        ) from error


def _with_chat(made: Registration, found: ChatTemplate, out: Path | None) -> Registration:
    """The same, with a chat template as a further blob."""
    from nodewire.weights.blob_folder import blobs_in

    blobs = blobs_in(out)
    manifest = {**made.manifest.document(), "chat": blobs.blob(found.pack()).document()}
    report = (*made.report, f"chat template of {len(found.template)} characters, for customers")
    return replace(made, manifest=Manifest.from_document(manifest), blobs={**made.blobs, **blobs.paths}, report=report)


def registration_report(made: Registration) -> dict[str, Any]:
    """What `--json` says of a registration, published or not: sizes in bytes, `flops` for a position."""
    manifest, at = made.manifest, steps(made.manifest)
    return {
        "name": manifest.name,
        "mode": manifest.mode,
        "report": list(made.report),
        "tasks": [
            {
                "name": task.name,
                "engine": task.engine,
                "step": at[task.name],
                "memory_bytes": task.memory_bytes,
                "page_bytes": task.page_bytes,
                "weights_bytes": sum(blob.bytes for blob in task.weights),
                "program_bytes": task.program.bytes,
                "flops": task.flops,
                "slots": task.slots,
                "limit": task.limit,
                **_known(made.pieces.get(task.name)),
            }
            for task in manifest.tasks
        ],
        "edges": [edge.document() for edge in manifest.edges],
        "steps": 1 + max(at.values()),
        "upload_bytes": made.upload_bytes,
        "blobs": len(made.cited) + 1,
        "lacks": list(made.lacks),
        **({"context": manifest.context, "fits": [asdict(fit) for fit in made.fits]} if made.fits else {}),
    }


def _known(piece: TaskSize | None) -> dict[str, Any]:
    if piece is None:
        return {}
    return {
        "operators": piece.operators,
        "peak_bytes": piece.weights_bytes + piece.live_bytes,
        "loaded_bytes": piece.weights_bytes,
        "live_bytes": piece.live_bytes,
        "most_at": piece.most_at,
        "no_room_for": piece.no_room_for,
        "holds": list(piece.holds),
    }


def steps(manifest: Manifest) -> dict[str, int]:
    """By task, how many others must have computed one after the other before it can.

    Those of one step may run at once.
    """
    sources: dict[str, list[str]] = {task.name: [] for task in manifest.tasks}
    for edge in manifest.edges:
        if CUSTOMER not in (edge.source, edge.target) and not edge.back:
            sources[edge.target].append(edge.source)
    found: dict[str, int] = {}
    for name, before in sources.items():
        found[name] = 1 + max((found[one] for one in before), default=-1)
    return found
