"""`nodewire generate` and `nodewire embed`: buy work from the market, or run it here with `--local`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
import uvloop
from rich.text import Text

from nodewire.cli.output import Json, console, one_line, plain, print_json, sats
from nodewire.config import parse_msat
from nodewire.errors import BadConfig, BadInput

Config = Annotated[Path | None, typer.Option("--config", "-c", help="The customer's TOML file.")]
Model = Annotated[str, typer.Option("--model", "-m", help="Address of the manifest (38840:<author>:<name>).")]
Local = Annotated[Path | None, typer.Option(help="Run this Hugging Face model folder here, without any market.")]
Report = Annotated[Path | None, typer.Option(help="Write what happened and what it cost to this JSON file.")]
Budget = Annotated[str, typer.Option(help="Most that the job may cost, such as 50sat (default: the configuration's).")]


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
    report: Report = None,
    json: Json = False,
) -> None:
    """Continue a text on strangers' machines, streaming."""
    _can_write(report)
    text = sys.stdin.read() if prompt == "-" else prompt
    params: dict[str, Any] = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    if stop:
        params["stop"] = stop
    if local is not None:
        done = _generate_here(local, text, params, threads=threads, stream=not json)
    else:
        _needs(config, model)
        assert config is not None
        done = uvloop.run(_generate(config, model, text, params, budget, stream=not json))
        if not json:
            _show_bill(done)
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
    report: Report = None,
    json: Json = False,
) -> None:
    """Turn sentences into vectors on strangers' machines."""
    _can_write(report)
    lines = [line for line in sys.stdin.read().splitlines() if line.strip()] if texts == ["-"] else texts
    if local is not None:
        done = _embed_here(local, lines)
    else:
        _needs(config, model)
        assert config is not None
        done = uvloop.run(_embed(config, model, lines, budget))
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
    if local is None:
        _show_bill(done)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Customers")(generate)
    app.command(rich_help_panel="Customers")(embed)


class _Shown:
    """A text that is shown as it grows: the prompt on stderr once something follows it, what follows on stdout."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._began = False

    def add(self, text: str) -> None:
        if not self._began:
            console.print(Text(plain(self._prompt), style="dim"), end="", soft_wrap=True)
        self._began = True
        print(plain(text) if sys.stdout.isatty() else text, end="", flush=True)

    def end(self) -> None:
        if self._began:
            print(flush=True)


async def _generate(
    config: Path, model: str, prompt: str, params: dict[str, Any], budget: str, *, stream: bool
) -> dict[str, Any]:
    from nodewire.customer.customer import Customer

    async with Customer.open(config) as customer:
        shown = _Shown(prompt) if stream else None
        try:
            async for piece in customer.generate(model, prompt, terms=_terms(customer, budget), **params):
                if shown:
                    shown.add(piece.text)
        finally:
            if shown:
                shown.end()
        return customer.last


async def _embed(config: Path, model: str, texts: list[str], budget: str) -> dict[str, Any]:
    from nodewire.customer.customer import Customer

    async with Customer.open(config) as customer:
        vectors = await customer.embed(model, texts, terms=_terms(customer, budget))
        return {**customer.last, "vectors": vectors.tolist()}


def _terms(customer: Any, budget: str) -> Any:
    return customer.terms.model_copy(update={"max_total_msat": parse_msat(budget)}) if budget else None


def _generate_here(folder: Path, prompt: str, params: dict[str, Any], *, threads: int, stream: bool) -> dict[str, Any]:
    from nodewire.llm.sampling import parse_params
    from nodewire.llm.whole import Whole

    whole = Whole(_folder(folder), threads=threads)
    shown = _Shown(prompt) if stream else None
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


def _can_write(report: Path | None) -> None:
    """Known before anything is paid."""
    if report is not None and not report.resolve().parent.is_dir():
        raise BadInput("--report", f"the folder {report.parent} does not exist")


def _needs(config: Path | None, model: str) -> None:
    if config is None:
        raise BadInput("--config", "the customer's TOML file is needed (or --local FOLDER)")
    if not model:
        raise BadInput("--model", "the manifest's address is needed; `nodewire models --config FILE` lists them")


def _show_bill(done: dict[str, Any]) -> None:
    """Who was paid what, for people."""
    from rich.table import Table

    table = Table("task", "provider", "standby", "of", "a chunk", box=None, header_style="bold dim")
    for task in done["tasks"]:
        standby = (task["standby"] or "-")[:8]
        table.add_row(task["task"], task["provider"][:8], standby, str(task["holders"]), sats(task["price_msat"]))
    console.print(table)
    console.print(
        f"[dim]drawn by the beacon {done['beacon'][:12]} of epoch {done['epoch']} among the live holders (of), then by"
        " least latency; `nodewire audit` re-derives it[/]"
    )
    total = sum(done["paid_msat"].values())
    console.print(
        f"[bold]{sats(total + done['fees_msat'])}[/] in {done['zaps']} zaps to {len(done['providers'])} providers"
        f" (fees {sats(done['fees_msat'])}) · first output {done['first_token_ms']:.0f} ms ·"
        f" {done['tokens_per_s']:.1f} outputs/s"
        f"\nrequest {done['request']}"
    )
