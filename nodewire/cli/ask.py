"""`nodewire generate` and `nodewire embed`: buy work from the market, or run it here with `--local`."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
import uvloop

from nodewire.cli.output import CUSTOMERS, Json, console, one_line, print_json
from nodewire.cli.roles import check_model, load_customer, naming
from nodewire.config import CustomerConfig, parse_msat
from nodewire.errors import BadConfig, BadInput, NodewireError

if TYPE_CHECKING:
    from nodewire.cli.shown import Watched
    from nodewire.plan.codec import EdgeCodec
    from nodewire.protocol.codec import Codec

Config = Annotated[Path | None, typer.Option("--config", "-c", help="The customer's TOML file.")]
Model = Annotated[str, typer.Option("--model", "-m", help="Address of the manifest (38840:<author>:<name>).")]
Local = Annotated[
    Path | None,
    typer.Option(help="Run this Hugging Face model folder here, without any market, and so without its options."),
]
Report = Annotated[Path | None, typer.Option(help="Write what happened and what it cost to this JSON file.")]
Budget = Annotated[str, typer.Option(help="Most that the job may cost, such as 50sat (default: the configuration's).")]

Codecs = Annotated[
    list[str] | None,
    typer.Option(
        help="Narrow what providers send each other, which is lossy: bf16, int8, auto (where it pays), or EDGE=CODEC"
        " for one edge (may be repeated)."
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="Have the committee compute a sample of it again.")]
Wait = Annotated[bool, typer.Option("--wait", help="As --verify; end when it has judged, and make again what failed.")]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options say of a purchase, whatever is bought. `most_msat` None: the configuration's budget."""

    most_msat: int | None
    edge_codec: EdgeCodec | None
    by_edge: dict[str, Codec]
    verify: bool
    wait: bool

    def of(self, customer: Watched) -> dict[str, Any]:
        """The arguments that a customer's methods share."""
        changed: dict[str, Any] = {"codecs": self.by_edge}
        if self.most_msat is not None:
            changed["max_total_msat"] = self.most_msat
        if self.verify:
            changed["verify"] = "sampled"
        terms = customer.terms.model_copy(update=changed)
        return {"terms": terms, "wait": self.wait, "edge_codec": self.edge_codec}


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from standard input.")],
    config: Config = None,
    model: Model = "",
    local: Local = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to make.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Nucleus of this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    threads: Annotated[int, typer.Option(help="CPU threads of a --local run.", min=1)] = 1,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text (may be repeated).")] = None,
    budget: Budget = "",
    edge_codec: Codecs = None,
    verify: Verify = False,
    wait: Wait = False,
    report: Report = None,
    json: Json = False,
) -> None:
    """Continue a text on strangers' machines, streaming."""
    _can_write(report)
    if local is not None:
        _only_here(config=config, model=model, budget=budget, edge_codec=edge_codec, verify=verify, wait=wait)
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise BadInput("prompt", "is empty; nothing was bought")
    params: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    if stop:
        params["stop"] = stop
    if local is not None:
        done = _generate_here(local, text, params, threads=threads, stream=not json)
    else:
        config, customer = _needs(config, model)
        verify = verify or wait
        asked = Asked(_budget(budget), *_codecs(edge_codec), verify=verify, wait=wait)
        done = uvloop.run(_generate(customer, model, text, params, asked, show=not json))
        if not json:
            _show_bill(done, config, streamed=True, sampled=verify)
    if report is not None:
        report.write_bytes(orjson.dumps(done, option=orjson.OPT_INDENT_2))
    if json:
        print_json(done)


def embed(
    texts: Annotated[list[str], typer.Argument(help="The sentences; - reads one per line from standard input.")],
    config: Config = None,
    model: Model = "",
    local: Local = None,
    budget: Budget = "",
    edge_codec: Codecs = None,
    verify: Verify = False,
    wait: Wait = False,
    report: Report = None,
    json: Json = False,
) -> None:
    """Turn sentences into vectors on strangers' machines."""
    _can_write(report)
    if local is not None:
        _only_here(config=config, model=model, budget=budget, edge_codec=edge_codec, verify=verify, wait=wait)
    lines = [line for line in sys.stdin.read().splitlines() if line.strip()] if texts == ["-"] else texts
    if not lines or not all(line.strip() for line in lines):
        raise BadInput("texts", "there is none, or an empty one; nothing was bought")
    if local is not None:
        done = _embed_here(local, lines)
    else:
        config, customer = _needs(config, model)
        verify = verify or wait
        asked = Asked(_budget(budget), *_codecs(edge_codec), verify=verify, wait=wait)
        done = uvloop.run(_embed(customer, model, lines, asked, show=not json))
    vectors = done["vectors"]
    if report is not None:
        report.write_bytes(orjson.dumps({k: v for k, v in done.items() if k != "vectors"}, option=orjson.OPT_INDENT_2))
    if json:
        print_json(done)
        return
    for line, vector in zip(lines, vectors, strict=True):
        console.print(
            f"[bold]{one_line(line[:60])}[/]  {', '.join(f'{x:+.4f}' for x in vector[:6])} … {len(vector)} numbers"
        )
    if config is not None and local is None:
        _show_bill(done, config, streamed=False, sampled=verify)


def run(
    rows: Annotated[Path, typer.Argument(help="A safetensors file with x: rows of numbers.")],
    config: Annotated[Path, typer.Option("--config", "-c", help="The customer's TOML file.")],
    model: Model,
    budget: Budget = "",
    edge_codec: Codecs = None,
    verify: Verify = False,
    wait: Wait = False,
    report: Report = None,
    json: Json = False,
) -> None:
    """Have a classifier score rows of numbers on strangers' machines."""
    _can_write(report)
    config, customer = _needs(config, model)
    verify, x = verify or wait, _rows(rows)
    asked = Asked(_budget(budget), *_codecs(edge_codec), verify=verify, wait=wait)
    done = uvloop.run(_run(customer, model, x, asked, show=not json))
    if report is not None:
        report.write_bytes(orjson.dumps(done, option=orjson.OPT_INDENT_2))
    if json:
        print_json(done)
        return
    for number, scores in enumerate(done["scores"]):
        best = max(range(len(scores)), key=scores.__getitem__)
        shown = ", ".join(f"{score:+.3f}" for score in scores[:10])
        console.print(f"[bold]{number}[/]  class {best}  [dim]{shown}{' …' if len(scores) > 10 else ''}[/]")
    _show_bill(done, config, streamed=False, sampled=verify)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(generate)
    app.command(rich_help_panel=CUSTOMERS)(embed)
    app.command(rich_help_panel=CUSTOMERS)(run)


async def _generate(
    config: CustomerConfig,
    model: str,
    prompt: str,
    params: dict[str, Any],
    asked: Asked,
    *,
    show: bool,
) -> dict[str, Any]:
    from nodewire.cli.shown import GrowingText

    async with _buying(config, show=show) as customer:
        text = GrowingText(prompt)
        try:
            async with aclosing(customer.generate(model, prompt, **asked.of(customer), **params)) as pieces:
                async for piece in pieces:
                    if show:
                        text.add(piece.text)
        finally:
            text.end()
        return {**customer.last, "names": customer.names}


async def _embed(config: CustomerConfig, model: str, texts: list[str], asked: Asked, *, show: bool) -> dict[str, Any]:
    async with _buying(config, show=show) as customer:
        vectors = await customer.embed(model, texts, **asked.of(customer))
        return {**customer.last, "names": customer.names, "vectors": vectors.tolist()}


async def _run(config: CustomerConfig, model: str, rows: Any, asked: Asked, *, show: bool) -> dict[str, Any]:
    async with _buying(config, show=show) as customer:
        scores = await customer.run(model, rows, **asked.of(customer))
        return {**customer.last, "names": customer.names, "scores": scores.tolist()}


def _rows(path: Path) -> Any:
    """The x of a safetensors file, a numpy array. Raises BadConfig, BadInput."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        found = load_file(path)
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise BadInput(str(path), "not a safetensors file") from error
    if "x" not in found:
        raise BadInput(str(path), f"no tensor x in it, but {', '.join(sorted(found))[:80] or 'none'}")
    return found["x"]


@asynccontextmanager
async def _buying(config: CustomerConfig, *, show: bool) -> AsyncIterator[Watched]:
    """A customer; whoever interrupts it, or meets an error, is told what it came to until then."""
    from nodewire.cli.shown import Watched, show_so_far

    with naming(config.relays):
        async with Watched(config, show=show) as customer:
            try:
                yield customer
            except asyncio.CancelledError:
                paid = await customer.so_far()
                if show:
                    show_so_far("stopped", paid)
                else:
                    print_json({"stopped": True, **paid})
                raise
            except NodewireError:
                if show and (paid := await customer.so_far())["spent_msat"]:
                    show_so_far("broken off", paid)
                raise


def _budget(text: str) -> int | None:
    """In msat; None where the configuration's counts. Raises BadInput."""
    return parse_msat(text) if text else None


def _codecs(asked: list[str] | None) -> tuple[Any, dict[str, Any]]:
    """What --edge-codec says of the whole job (None: nothing), and of single edges. Raises BadInput."""
    from nodewire.protocol.codec import CODECS

    whole: str | None = None
    by_edge: dict[str, str] = {}
    for text in asked or ():
        edge, named, codec = text.rpartition("=")
        if codec not in ((*CODECS, "auto") if not named else CODECS if edge else ()):
            known = ", ".join(CODECS)
            raise BadInput("--edge-codec", f"{text[:80]!r} is neither {known} nor auto, nor EDGE= and one of {known}")
        if named:
            by_edge[edge] = codec
        else:
            whole = codec
    return whole, by_edge


def _generate_here(folder: Path, prompt: str, params: dict[str, Any], *, threads: int, stream: bool) -> dict[str, Any]:
    from nodewire.cli.shown import GrowingText
    from nodewire.llm.sampling import parse_params
    from nodewire.llm.whole import Whole

    whole = Whole(_folder(folder), threads=threads)
    shown = GrowingText(prompt) if stream else None
    ids: list[int] = []
    texts: list[str] = []
    moments: list[float] = []
    started = time.perf_counter()
    for token, text in whole.steps(prompt, parse_params(params, whole.positions)):
        moments.append(time.perf_counter())
        ids.append(token)
        texts.append(text)
        if shown:
            shown.add(text)
    if shown:
        shown.end()
    rate = (len(moments) - 1) / (moments[-1] - moments[0]) if len(moments) > 1 else 0.0
    return {
        "ids": ids,
        "text": "".join(texts),
        "tokens_per_s": round(rate, 1),
        "first_token_ms": round((moments[0] - started) * 1000, 1) if moments else 0.0,
    }


def _embed_here(folder: Path, texts: list[str]) -> dict[str, Any]:
    from nodewire.graph.whole import embed as embed_whole

    return {"vectors": embed_whole(_folder(folder), texts).tolist()}


def _folder(folder: Path) -> Path:
    if not (folder / "config.json").is_file():
        raise BadConfig(str(folder), "holds no config.json; --local takes a Hugging Face model folder")
    return folder


def _only_here(**market: object) -> None:
    """Raises BadInput: a run without a market is given what only a market has."""
    if asked := [f"--{name.replace('_', '-')}" for name, value in market.items() if value]:
        raise BadInput(asked[0], f"--local runs the model here, without any market: leave out {' and '.join(asked)}")


def _can_write(report: Path | None) -> None:
    """Known before anything is paid."""
    if report is not None and not report.resolve().parent.is_dir():
        raise BadInput("--report", f"the folder {report.parent} does not exist")


def _show_bill(done: Mapping[str, Any], config: Path, *, streamed: bool, sampled: bool) -> None:
    from nodewire.cli.shown import show_bill

    show_bill(done, config, streamed=streamed, sampled=sampled)


def _needs(config: Path | None, model: str) -> tuple[Path, CustomerConfig]:
    if config is None:
        raise BadInput("--config", "the customer's TOML file is needed (or --local FOLDER)")
    if not model:
        raise BadInput("--model", "the manifest's address is needed; `nodewire models --config FILE` lists them")
    check_model(model)
    return config, load_customer(config)
