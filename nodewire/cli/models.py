"""`nodewire register` and `nodewire models`: put a model on the market, and see what is on it."""

from __future__ import annotations

import asyncio
import hashlib
import json as jsonlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from nodewire.cli.output import CUSTOMERS, DEVELOPERS, Json, console, notes, one_line, print_json, sats
from nodewire.cli.registered import is_registered, registration_in
from nodewire.cli.roles import enter_market, load_customer, naming
from nodewire.cli.training_results import MODEL, SUMMARY, note, trained
from nodewire.config import AnyRole, load_role
from nodewire.errors import BadConfig, BadHash, BadInput, NodewireError, NotFound, OverMemory
from nodewire.kind import Registration
from nodewire.protocol.manifest import Manifest
from nodewire.protocol.sizes import parse_size

Relays = Annotated[
    list[str] | None, typer.Option("--relay", help="Relay to publish to (may be repeated; default: --config's).")
]
Blossoms = Annotated[
    list[str] | None, typer.Option("--blossom", help="Blob store to upload to (may be repeated; default: --config's).")
]

TARGET_VRAM = "1GB"

_ENCODERS = ("BertModel", "BertForMaskedLM")


def register(
    ctx: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(
            help="A Hugging Face model folder: config.json, safetensors, tokenizer.json; a Llama as Meta gives it "
            "out; what `train` left; or what `nodewire.register` wrote."
        ),
    ],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The customer's TOML file: relays, stores and key.")
    ] = None,
    target_vram: Annotated[
        str, typer.Option(help="Most memory that one piece may need, such as 6MB or 12GiB.")
    ] = TARGET_VRAM,
    relay: Relays = None,
    blossom: Blossoms = None,
    key: Annotated[
        Path | None,
        typer.Option(help="The author's key file, made if missing (default: --config's, or else author.nsec)."),
    ] = None,
    name: Annotated[str, typer.Option(help="The model's name (default: the recipe's, or else the folder's).")] = "",
    slots: Annotated[int, typer.Option(help="Sessions that one piece must have room for.", min=1)] = 4,
    as_tensors: Annotated[
        bool,
        typer.Option(
            "--as-tensors",
            help="Cut any architecture at its operators, to be called with tensors; without it decoders are cut to "
            "generate text, and BERT models to embed it.",
        ),
    ] = False,
    expert_groups: Annotated[
        int,
        typer.Option(min=1, help="Pieces that the experts of each mixture are parted in; more if --target-vram asks."),
    ] = 1,
    most: Annotated[
        list[str] | None,
        typer.Option(
            "--most",
            help="The most that one call may hold together, such as --most batch=8 --most sequence=64; of what is "
            "called with tensors.",
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Forbid customers to narrow what pieces send each other.")
    ] = False,
    json: Json = False,
) -> None:
    """Cut a model into pieces, upload them, publish the manifest."""
    if not folder.is_dir():
        raise NotFound(str(folder), "is no folder")
    if is_registered(folder):
        _check_uncut(ctx)
    role = load_customer(config) if config is not None else None
    relays, servers = relay or (role and list(role.relays)), blossom or (role and list(role.blossom))
    if not relays or not servers:
        raise BadInput("--config", "a customer's TOML file says where to publish; or --relay and --blossom do")
    author = key or (role.key if role is not None else Path("author.nsec"))
    results, folder = results_of(folder), model_in(folder)
    if not is_registered(folder):
        name = name or (results and trained(results).get("recipe")) or folder.resolve().name.lower()
    made, done = publish_folder(
        folder,
        size_of(target_vram),
        name,
        slots,
        author,
        relays,
        servers,
        as_tensors=as_tensors,
        expert_groups=expert_groups,
        most=_sizes(most or ()),
        exact=exact,
        show=not json,
    )
    if results is not None:
        note(results, {**trained(results), "registered": done})
    if json:
        print_json(done)
        return
    for line in made.report:
        console.print(f"  {escape(line)}", soft_wrap=True)
    console.print(f"[bold green]registered[/] {done['address']}\n[dim]digest {done['digest']}[/]", soft_wrap=True)


_CUTTING = ("target_vram", "slots", "as_tensors", "expert_groups", "most")


def _check_uncut(ctx: typer.Context) -> None:
    """Raises BadInput: it is said how to cut what has been cut."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in _CUTTING and source is not None and source.name == "COMMANDLINE":
            raise BadInput(parameter.opts[0], "`nodewire.register` has cut the model already: say it there")


def models(
    config: Annotated[Path, typer.Option("--config", "-c", help="A role's TOML file: relays, stores, committee.")],
    json: Json = False,
) -> None:
    """List the models on the market: who serves what, at what price."""
    role = load_role(config)
    with naming(role.relays):
        found = asyncio.run(_models(role))
    if json:
        print_json({"models": found})
        return
    from rich.table import Table

    for model in found:
        table = Table(f"{model['name']}  {model['mode']}", "memory", "live providers", "a chunk from", box=None)
        for task in model["tasks"]:
            price = "-" if task["min_price_msat"] is None else sats(task["min_price_msat"])
            table.add_row(task["name"], f"{task['memory_bytes'] / 1e6:.1f} MB", str(task["providers"]), price)
        console.print(table)
        for node in model["nodes"]:
            work = f"{node['passed']} samples passed, {node['withheld']} withheld"
            console.print(f"[dim]{node['public'][:8]}: bond {sats(node['bond_msat'])}, {work}[/]", soft_wrap=True)
        console.print(f"[dim]{model['address']}[/]\n", soft_wrap=True)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DEVELOPERS)(register)
    app.command(rich_help_panel=CUSTOMERS)(models)


def size_of(text: str) -> int:
    """Raises BadInput for what is no size; a small number without a unit was hardly meant in bytes."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise BadInput("--target-vram", str(error)) from error
    if text.strip().isdigit() and size < 1_000_000:
        raise BadInput("--target-vram", f"{text.strip()} of what? Add a unit, such as {text.strip()}MB or GB")
    return size


def publish_folder(
    folder: Path,
    target_bytes: int,
    name: str,
    slots: int,
    key: Path,
    relays: list[str],
    servers: list[str],
    *,
    as_tensors: bool = False,
    expert_groups: int = 1,
    most: Mapping[str, int] | None = None,
    exact: bool = False,
    show: bool,
) -> tuple[Registration, dict[str, Any]]:
    """Cut the model in a folder, upload it and publish its manifest: what was made, and what `--json` says of it."""
    with tempfile.TemporaryDirectory() as scratch:
        if is_registered(folder):
            made = registration_in(folder, name)
        else:
            with notes.status(f"cutting {folder.name} into pieces of at most {target_bytes / 1e6:,.1f} MB"):
                made = _split(folder, target_bytes, Path(scratch), name, slots, as_tensors, expert_groups, most)
                made = _with_chat(made, folder, Path(scratch))
        made = _exact(made) if exact else made
        return made, asyncio.run(_publish(made, key, relays, servers, show=show))


def _sizes(said: Sequence[str]) -> dict[str, int]:
    """Sizes by name, from NAME=SIZE. Raises BadInput."""
    found: dict[str, int] = {}
    for one in said:
        name, _, size = one.partition("=")
        if not name or not size.isdecimal() or not 0 < len(size) < 10:
            raise BadInput("--most", f"{one[:80]!r} is not NAME=SIZE, such as batch=8")
        found[name] = int(size)
    return found


def model_in(folder: Path) -> Path:
    """Where the model is: in the folder itself or, of a training's results, in its `model`."""
    inner = folder / MODEL
    return inner if (folder / SUMMARY).is_file() and inner.is_dir() else folder


def results_of(folder: Path) -> Path | None:
    """The folder of a training's results that `folder` is, or is the model in; None if it is of another origin."""
    own = folder.resolve()
    found = own.parent if own.name == MODEL else own
    return found if (found / SUMMARY).is_file() else None


def _with_chat(made: Registration, folder: Path, out: Path) -> Registration:
    """The same, with the folder's chat template as a further blob, if it is of a model that generates and has one."""
    from nodewire.chat.folder import chat_template

    found = chat_template(folder) if made.manifest.mode == "generate" else None
    if found is None:
        return made
    packed = found.pack()
    sha256 = hashlib.sha256(packed).hexdigest()
    (out / sha256).write_bytes(packed)
    manifest = {**made.manifest.document(), "chat": {"sha256": sha256, "bytes": len(packed)}}
    report = (*made.report, f"chat template of {len(found.template)} characters, for customers")
    return Registration(Manifest.from_document(manifest), {**made.blobs, sha256: out / sha256}, report)


def _exact(made: Registration) -> Registration:
    """The same, with every edge called exact."""
    edges = tuple(edge.model_copy(update={"exact": True}) for edge in made.manifest.edges)
    return replace(made, manifest=made.manifest.model_copy(update={"edges": edges}))


def _split(
    folder: Path,
    target_bytes: int,
    out: Path,
    name: str,
    slots: int,
    as_tensors: bool = False,
    expert_groups: int = 1,
    most: Mapping[str, int] | None = None,
) -> Registration:
    """Cut by the engine that the folder's architecture belongs to. torch is imported here, not before."""
    from nodewire.llm.families import ARCHITECTURES

    no_sizes = BadInput("--most", "is for what is called with tensors; --as-tensors cuts any model so")
    no_experts = BadInput(
        "--expert-groups", "what is cut so keeps its experts together; --as-tensors cuts any model's operators"
    )
    if (folder / "recipe.json").is_file() and not (folder / "config.json").exists():  # as `train` leaves a classifier
        from nodewire.graph.classifier import split_classifier

        if expert_groups > 1:
            raise no_experts
        if most:
            raise no_sizes
        return split_classifier(folder, target_bytes, out, slots=slots, name=name)
    meta = (folder / "params.json").is_file() and not (folder / "config.json").exists()  # Llama in Meta's own layout
    try:
        architecture = None if meta else jsonlib.loads((folder / "config.json").read_text())["architectures"][0]
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise BadConfig(str(folder), "holds no config.json that names its architecture") from error
    speaks = meta or (isinstance(architecture, str) and architecture in ARCHITECTURES)
    if (speaks or architecture in _ENCODERS) and not as_tensors and expert_groups > 1:
        raise no_experts
    if (speaks or architecture in _ENCODERS) and not as_tensors and most:
        raise no_sizes
    if speaks and not as_tensors:
        from nodewire.llm.split import split_decoder

        if not meta and not (folder / "tokenizer.json").is_file():
            raise NotFound("tokenizer.json", f"not in {folder}: text needs one; or --as-tensors cuts it without")
        return split_decoder(folder, target_bytes, out, slots=slots, name=name)
    if architecture in _ENCODERS and not as_tensors:
        from nodewire.graph.split_encoder import split_encoder

        return split_encoder(folder, target_bytes, out, slots=slots, name=name)
    from nodewire.graph.split_directory import split_directory

    try:
        return split_directory(
            folder, target_bytes, out, slots=slots, name=name, expert_groups=expert_groups, most=most
        )
    except OverMemory as error:
        remedy = "name them with --most (--most sequence=64), or a larger --target-vram"
        raise OverMemory(error.field, f"{error.reason}: {remedy}") from None


async def _publish(
    made: Registration, key: Path, relays: list[str], servers: list[str], *, show: bool
) -> dict[str, Any]:
    from rich.progress import Progress

    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.protocol import publish
    from nodewire.store.blobs import Blobs

    keys = Keys.from_file(key)
    manifest = made.manifest
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(Pool(relays, keys=keys))
        cache = stack.enter_context(tempfile.TemporaryDirectory())
        blobs = await stack.enter_async_context(Blobs(servers, Path(cache), keys=keys))
        with Progress(console=notes, transient=True, disable=not show) as progress:
            for sha256, path in progress.track(list(made.blobs.items()), description="uploading"):
                if (await blobs.put(path)).sha256 != sha256:
                    raise BadHash(str(path), "is not what the manifest cites: it has changed")
        packed = await blobs.put(manifest.pack())
        event = publish.build(
            keys, manifest, created_at=int(time.time()), blob_sha256=packed.sha256, servers=tuple(servers)
        )
        await pool.publish(event, timeout_s=30.0)
    return {
        "address": publish.address(event),
        "event": event.id,
        "digest": manifest.digest(),
        "name": manifest.name,
        "report": list(made.report),
        "tasks": [
            {
                "name": t.name,
                "engine": t.engine,
                "memory_bytes": t.memory_bytes,
                "weights_bytes": sum(w.bytes for w in t.weights),
                "limit": t.limit,
            }
            for t in manifest.tasks
        ],
    }


async def _models(role: AnyRole) -> list[dict[str, Any]]:
    from nodewire.nostr.nip01 import Filter
    from nodewire.protocol import account, kinds, publish

    async with AsyncExitStack() as stack:
        _, pool, market = await enter_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        epoch = await market.epoch(timeout_s=30.0)
        snapshot = await market.snapshot(epoch.body.snapshot)
        found = []
        for event in await pool.fetch([Filter(kinds=frozenset({kinds.MANIFEST}), limit=200)], timeout_s=10.0):
            try:
                manifest = await market.manifest(publish.address(event))
            except NodewireError as error:
                notes.print(f"[dim]{one_line(str(event.tag('d')))}: {one_line(str(error))}[/]", soft_wrap=True)
                continue
            digest = manifest.digest()
            holders = [(n, h) for n in snapshot.nodes for h in n.held if h.manifest == digest]
            offers = [t for _, h in holders for t in h.tasks]
            tasks = []
            for task in manifest.tasks:
                prices = [offer.price_msat for offer in offers if offer.task == task.name]
                tasks.append(
                    {
                        "name": task.name,
                        "memory_bytes": task.memory_bytes,
                        "providers": len(prices),
                        "min_price_msat": min(prices, default=None),
                    }
                )
            nodes = [
                {
                    "public": n.pubkey,
                    "bond_msat": n.bond_msat,
                    "passed": account.times(n.passed),
                    "withheld": account.times(n.withheld),
                }
                for n, _ in holders
            ]
            address, name, mode = publish.address(event), manifest.name, manifest.mode
            found.append({"address": address, "name": name, "mode": mode, "tasks": tasks, "nodes": nodes})
        return found
