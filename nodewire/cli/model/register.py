"""`nodewire register`: cut a model into pieces and put it on the market, or say what would come of it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from nodewire.cli.common.local import check_model, dtype_of, model_name
from nodewire.cli.common.registration_folder import SOURCES, is_registered
from nodewire.cli.common.roles import load_customer
from nodewire.cli.common.training_results import MODEL, SUMMARY, note, trained
from nodewire.cli.model.cut import CutOptions, cut, plan, registration_report
from nodewire.cli.model.replacement import Replace, check_replaced, published
from nodewire.cli.output import DEVELOPERS, Json, console, notes, one_line, print_json, steps
from nodewire.errors import BadHash, BadInput
from nodewire.kind import Registration, Say
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.model import layer_ranges
from nodewire.protocol.model.manifest import Manifest

if TYPE_CHECKING:
    from nodewire.nostr.keys import Keys
    from nodewire.nostr.pool import Pool
    from nodewire.store.blobs import Blobs

Relays = Annotated[
    list[str] | None, typer.Option("--relay", help="Relay to publish to (may be repeated; default: --config's).")
]
Blossoms = Annotated[
    list[str] | None, typer.Option("--blossom", help="Blob store to upload to (may be repeated; default: --config's).")
]

TARGET_VRAM = "1GB"


def register(
    ctx: typer.Context,
    folder: Annotated[
        Path,
        typer.Argument(
            help="A Hugging Face model folder (config.json, safetensors, tokenizer.json), a GGUF file, or a Llama in"
            " Meta's layout. Also the folder of a training, or one that `nodewire.register` or --out wrote."
        ),
    ],
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The customer's TOML file: relays, stores and key.")
    ] = None,
    target_vram: Annotated[
        str, typer.Option(help="The most memory that one piece may need, such as 6MB or 12GiB.")
    ] = TARGET_VRAM,
    relay: Relays = None,
    blossom: Blossoms = None,
    key: Annotated[
        Path | None,
        typer.Option(help="The author's key file, made if missing (default: --config's, or else author.nsec)."),
    ] = None,
    name: Annotated[str, typer.Option(help="The model's name (default: the recipe's, or else the folder's).")] = "",
    sessions: Annotated[
        int,
        typer.Option(
            help="Sessions that one piece must have room for at once. A decoder's have --context positions each; of"
            " shorter ones there may be more.",
            min=1,
            max=4_096,
        ),
    ] = 4,
    context: Annotated[
        int | None,
        typer.Option(
            help="The most positions of a decoder's session, prompt and answer (default: 8192, or the model's own if"
            " that is less).",
            min=2,
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            help="The dtype of a decoder's weights and arithmetic: float32 or bfloat16. By default it is bfloat16 if"
            " most weights are stored so or in few bits, else float32."
        ),
    ] = "",
    kv: Annotated[
        str,
        typer.Option(help="The format of a decoder's keys and values: int8 takes half the memory of bfloat16."),
    ] = "",
    split: Annotated[
        str, typer.Option(help="A decoder's stages by their layers, such as 0-7,8-15, in place of --target-vram.")
    ] = "",
    as_tensors: Annotated[
        bool,
        typer.Option(
            "--as-tensors",
            help="Cut any architecture at its operators, to be called with tensors. Without this option decoders"
            " generate text, and sentence encoders embed it.",
        ),
    ] = False,
    expert_groups: Annotated[
        int,
        typer.Option(
            min=1, help="The number of pieces for the experts of each mixture; more if --target-vram needs them."
        ),
    ] = 1,
    most: Annotated[
        list[str] | None,
        typer.Option(
            "--most",
            help="The largest dimensions of one call to a model that takes tensors, such as --most batch=8 --most"
            " sequence=64.",
        ),
    ] = None,
    lend: Annotated[
        bool,
        typer.Option(
            "--lend",
            help="Give a decoder's embedding to the first piece and its head to the last. The driver needs neither,"
            " and token ids go to the ring and come back. Such a model generates at temperature 0.",
        ),
    ] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Forbid lossy codecs between the pieces.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only print the pieces: no weight is read, nothing is written or published. The folder's"
            " config.json will do, and no relay, store or key is needed.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Publish nothing, and leave manifest and pieces in this folder, for `nodewire graph`, `profile`,"
            " `place` and a later `register`. A dry run leaves the manifest alone.",
        ),
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(
            help="The folder where the pieces lie until they are uploaded, as large as the model (default: the"
            " system's temporary directory)."
        ),
    ] = None,
    replace_: Replace = False,
    json: Json = False,
) -> None:
    """Cut a model into pieces, upload them, publish the manifest."""
    check_model(folder)
    if is_registered(folder):
        _check_uncut(ctx)
    results, folder = results_of(folder), model_in(folder)
    if not is_registered(folder):
        name = name or (results and trained(results).get("recipe")) or model_name(folder).lower()
    asked = CutOptions(
        size_of(target_vram),
        name,
        sessions,
        as_tensors,
        expert_groups,
        _sizes(most or ()),
        layer_ranges.parse(split) if split else (),
        lend,
        context,
        dtype_of(dtype),
        _kv(kv),
    )
    if dry_run or out is not None:
        made = _kept(folder, asked, out, exact=exact, dry_run=dry_run)
        if json:
            print_json({**registration_report(made), "out": None if out is None else str(out)})
            return
        from nodewire.cli.model.dry_run import show

        show(made)
        if out is not None:
            console.print(f"[bold green]written[/] into {one_line(str(out))}", soft_wrap=True)
        return
    role = load_customer(config) if config is not None else None
    relays, servers = relay or (role and list(role.relays)), blossom or (role and list(role.blossom))
    if not relays or not servers:
        raise BadInput(
            "--config",
            "a customer's TOML file says where to publish; or --relay and --blossom do; or --out keeps it here",
        )
    author = key or (role.key if role is not None else Path("author.nsec"))
    market = Market(author, relays, servers, replace_)
    made, done = publish_folder(folder, asked, market, scratch, exact=exact, show=not json)
    if results is not None:
        note(results, {**trained(results), "registered": done})
    if json:
        print_json(done)
        return
    for line in made.report:
        console.print(f"  {escape(line)}", soft_wrap=True)
    console.print(f"[bold green]registered[/] {done['address']}\n[dim]digest {done['digest']}[/]", soft_wrap=True)
    notes.print(
        "\n[dim]it can be bought once providers serve each of its tasks, which the file of one says so:[/]",
        soft_wrap=True,
    )
    notes.print(escape(serve_block(done["address"], made.manifest)), soft_wrap=True)


def serve_block(address: str, manifest: Manifest) -> str:
    """The lines by which a provider's file serves all tasks of a manifest."""
    named = ", ".join(f'"{task.name}"' for task in manifest.tasks)
    price = 'price_per_million = "46.875sat"' if manifest.mode == "generate" else "price_msat = 1000"
    said = "# an example, for each task: `nodewire models` shows what others take"
    return f'[[serve]]\nmanifest = "{address}"\ntasks = [{named}]\n{price}  {said}'


_CUTTING = ["target_vram", "sessions", "context", "dtype", "kv", "split", "as_tensors", "expert_groups", "most", "lend"]


def _check_uncut(ctx: typer.Context) -> None:
    """Raises BadInput: it is said how to cut what has been cut."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in _CUTTING and source is not None and source.name == "COMMANDLINE":
            raise BadInput(
                parameter.opts[0], "FOLDER is cut already. Cut the model's own folder again with this option"
            )


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=DEVELOPERS)(register)


def size_of(text: str) -> int:
    """Raises BadInput for what is no size; a small number without a unit was hardly meant in bytes."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise BadInput("--target-vram", str(error)) from error
    if text.strip().isdigit() and size < 1_000_000:
        raise BadInput("--target-vram", f"{text.strip()} of what? Add a unit, such as {text.strip()}MB or GB")
    return size


@dataclass(frozen=True, slots=True)
class Market:
    """Where a model is published, and whose it is."""

    key: Path
    relays: list[str]
    servers: list[str]
    replaces: bool
    """Whether another model may stand there."""


def publish_folder(
    folder: Path, asked: CutOptions, market: Market, scratch: Path | None = None, *, exact: bool = False, show: bool
) -> tuple[Registration, dict[str, Any]]:
    """Cut the model in a folder, upload it and publish its manifest: what was made, and what `--json` says of it.

    Raises NotAllowed: it would replace another model, and may not; nothing is uploaded.
    """
    from nodewire.nostr.keys import Keys

    keys = Keys.from_file(market.key)
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="nodewire-register-") as pieces:
        with _saying(folder) as say:
            asyncio.run(_check_market(folder, asked, market, keys, Path(pieces)))
            made = cut(folder, asked, Path(pieces), say)
        made = _exact(made) if exact else made
        published = asyncio.run(_publish(made, market, keys, Path(pieces), show=show))
        return made, {**registration_report(made), **published}


def _kept(folder: Path, asked: CutOptions, out: Path | None, *, exact: bool, dry_run: bool) -> Registration:
    """The model in a folder, cut and not published; `out` gets what is made of it.

    Raises BadInput: `out` is a model's folder, or the model is cut already.
    """
    if out is not None and is_registered(folder):
        raise BadInput("--out", f"{folder} has manifest and pieces already")
    if out is not None and (source := next((one for one in SOURCES if (out / one).exists()), None)):
        raise BadInput("--out", f"{out} is a model's folder, it has a {source}: name another")
    with _saying(folder) as say:
        made = cut(folder, asked, None if dry_run else out, say)
    made = _exact(made) if exact else made
    if out is not None:
        from nodewire.weights.blob_folder import MANIFEST  # torch, which `cut` has imported

        out.mkdir(parents=True, exist_ok=True)
        (out / MANIFEST).write_bytes(made.manifest.pack())
    return made


@contextmanager
def _saying(folder: Path) -> Iterator[Say]:
    """Tells on standard error how far the cutting of a folder's model is."""
    with steps(f"cutting {one_line(folder.name)}", at_once=True) as tell:
        yield lambda step: tell(one_line(step))


def _kv(text: str) -> Literal["int8"] | None:
    """Raises BadInput."""
    if text not in ("", "int8"):
        raise BadInput("--kv", f"{text[:40]!r} is not int8; without it keys and values are kept as they are computed")
    return "int8" if text else None


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


def _exact(made: Registration) -> Registration:
    """The same, with every edge called exact."""
    edges = tuple(edge.model_copy(update={"exact": True}) for edge in made.manifest.edges)
    return replace(made, manifest=made.manifest.model_copy(update={"edges": edges}))


@asynccontextmanager
async def _entered(market: Market, keys: Keys, pieces: Path) -> AsyncIterator[tuple[Pool, Blobs]]:
    from nodewire.nostr.pool import Pool
    from nodewire.store.blobs import Blobs

    async with Pool(market.relays, keys=keys) as pool, Blobs(market.servers, pieces / ".fetched", keys=keys) as blobs:
        yield pool, blobs


async def _check_market(folder: Path, asked: CutOptions, market: Market, keys: Keys, pieces: Path) -> None:
    """Before a model is cut: the relays answer, and no other model stands there as far as can be told by then."""
    planned = plan(folder, asked)
    async with _entered(market, keys, pieces) as (pool, blobs):
        there = await published(pool, keys.public, asked.name if planned is None else planned.manifest.name)
        if there is not None and planned is not None and not market.replaces:
            await check_replaced(there, blobs, planned.manifest, by_size=not planned.blobs)


async def _publish(made: Registration, market: Market, keys: Keys, pieces: Path, *, show: bool) -> dict[str, Any]:
    from rich.progress import Progress

    from nodewire.protocol.model import manifest_event

    manifest = made.manifest
    async with _entered(market, keys, pieces) as (pool, blobs):
        there = await published(pool, keys.public, manifest.name)
        if there is not None and not market.replaces:
            await check_replaced(there, blobs, manifest)
        with Progress(console=notes, transient=True, disable=not show) as progress:
            for sha256, path in progress.track(list(made.blobs.items()), description="uploading"):
                if (await blobs.upload(path)).sha256 != sha256:
                    raise BadHash(str(path), "is not what the manifest cites: it has changed")
        packed = await blobs.put(manifest.pack())
        now_s = max(int(time.time()), there.created_at + 1 if there is not None else 0)  # of two in a second one stays
        event = manifest_event.build(
            keys, manifest, created_at=now_s, blob_sha256=packed.sha256, servers=tuple(market.servers)
        )
        await pool.publish(event, timeout_s=30.0)
    return {"address": manifest_event.address(event), "event": event.id, "digest": manifest.digest()}
