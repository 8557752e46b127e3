"""`nodewire generate` and `nodewire embed`: buy work from the market, or run it here with `--local`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
import typer
import uvloop
from rich.markup import escape

from nodewire.cli.buy.provider_options import Driver, Ends, Exclude, Region, Trusted, from_whom
from nodewire.cli.buy.purchase import (
    Budget,
    Codecs,
    Config,
    Model,
    PurchaseOptions,
    Report,
    Resplit,
    Verify,
    Wait,
    can_write,
    needs,
    only_here,
    open_customer,
)
from nodewire.cli.buy.sampling_options import MinP, Repetition, Seed, TopK, TopP, drawn
from nodewire.cli.common.local import Dtype, Local, Threads, dtype_of, encoder_folder, model_folder
from nodewire.cli.common.roles import name_relays
from nodewire.cli.output import CUSTOMERS, Json, console, counted, notes, one_line, print_json
from nodewire.cli.output import steps as loading
from nodewire.cli.swarm.swarm_options import Key, Lookahead, Split, State, SwarmAt, customer_of, no_market, only_swarm
from nodewire.config import CustomerConfig, parse_msat
from nodewire.errors import BadInput

if TYPE_CHECKING:
    from nodewire.protocol.model.chat_template import ChatTemplate
    from nodewire.swarm.member import SwarmCustomer

_LOOKAHEAD = 8
"""With a draft, if nobody says more or less."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A text to continue or, in a `chat`, to answer. `show`: its answer is streamed to the terminal."""

    text: str
    params: dict[str, Any]
    """As kind 8843 has them."""
    chat: bool
    show: bool


@dataclass(frozen=True, slots=True)
class _Engine:
    """How a model runs on this machine.

    `dtype` None: as its files have it; `draft`: the folder of a model that guesses.
    """

    dtype: Literal["float32", "bfloat16"] | None
    threads: int
    draft: Path | None


def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from standard input.")],
    config: Config = None,
    model: Model = "",
    local: Local = None,
    swarm: SwarmAt = None,
    split: Split = "",
    key: Key = None,
    state: State = None,
    lookahead: Lookahead = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Answer the text as a message: the model's chat template makes the prompt of it."),
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="The most tokens to make.")] = 128,
    temperature: Annotated[float, typer.Option(help="The temperature of sampling; 0 is greedy.")] = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    repetition: Repetition = 1.0,
    seed: Seed = 0,
    threads: Threads = 1,
    dtype: Dtype = "",
    draft: Annotated[
        Path | None,
        typer.Option(help="The folder of a smaller model that guesses tokens, as `lookahead` lets it (with --local)."),
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text (may be repeated).")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="A file with a JSON schema: the answer is an instance of it.")
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(
            help="The number of other tokens whose log-probability is given beside each token's (with --json or"
            " --report)."
        ),
    ] = None,
    budget: Budget = "",
    edge_codec: Codecs = None,
    resplit: Resplit = "",
    verify: Verify = False,
    wait: Wait = False,
    driver: Driver = None,
    trusted: Trusted = None,
    ends: Ends = None,
    exclude: Exclude = None,
    region: Region = None,
    report: Report = None,
    transcript: Annotated[
        Path | None,
        typer.Option(help="Write a signed record of each token's providers to this JSON file, for `nodewire audit`."),
    ] = None,
    quote: Annotated[
        bool, typer.Option("--quote", help="Say who would do it, about how much it costs and at most; buy nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Continue a text, or answer it, on strangers' machines or on a swarm's, streaming."""
    can_write(report)
    can_write(transcript)
    whom = {"driver": driver, "trusted": trusted, "ends": ends, "exclude": exclude, "region": region}
    if local is not None:
        only_here("--local", config=config, model=model, budget=budget, edge_codec=edge_codec, verify=verify, wait=wait)
        only_here("--local", resplit=resplit, quote=quote, **whom)
        _check_unsigned(transcript)
        local = model_folder(local)
    if swarm is not None:
        no_market(config=config, model=model, local=local, budget=budget, verify=verify, wait=wait)
        no_market(transcript=transcript, resplit=resplit, quote=quote, **whom)
    else:
        only_swarm(split=split, key=key, state=state)
    if local is None:
        _check_no_engine(draft, dtype)
    if lookahead is not None and local is None and swarm is None:
        raise BadInput("--lookahead", "is for --swarm and --local: of a market the configuration says it")
    text = _prompt(prompt)
    params = {"max_tokens": max_tokens, **drawn(temperature, top_p, top_k, min_p, repetition, seed)}
    params |= _limits(stop, json_schema, logprobs)
    question = _Question(text, params, chat, show=not json)
    if local is not None:
        params |= {"lookahead": lookahead} if lookahead is not None else {}
        done = _generate_here(local, question, _Engine(dtype_of(dtype), threads, draft))
    elif swarm is not None:
        member = customer_of(swarm, split, key, state, lookahead)
        asked = PurchaseOptions.from_options("", edge_codec, verify=False, wait=False)
        done = uvloop.run(_generate(member, member.file.swarm.address, question, asked))
        if not json:
            _show_speed(done)
    else:
        config, customer = needs(config, model)
        customer = from_whom(customer, driver, trusted, ends, exclude, region)
        if quote:
            _quote(
                customer,
                model,
                question,
                PurchaseOptions.from_options(budget, edge_codec, verify=verify, wait=wait),
                json=json,
            )
            return
        asked = PurchaseOptions.from_options(budget, edge_codec, verify=verify, wait=wait)
        params |= {"resplit_msat": parse_msat(resplit)} if resplit else {}
        done = _generate_with_transcript(customer, model, question, asked, transcript)
        if not json:
            _show_bill(done, config, streamed=True, sampled=asked.verify)
    if report is not None:
        report.write_bytes(orjson.dumps(done, option=orjson.OPT_INDENT_2))
    if json:
        print_json(done)


def _check_unsigned(transcript: Path | None) -> None:
    """Raises BadInput: a transcript of what is computed here is asked for."""
    if transcript is not None:
        raise BadInput("--transcript", "what runs here with --local is nobody's word: there is nothing to sign")


def _check_no_engine(draft: Path | None, dtype: str) -> None:
    """Raises BadInput: it is said how the model runs here, but it runs elsewhere."""
    if draft is not None:
        raise BadInput("--draft", "is for --local: elsewhere who drives has its own")
    if dtype:
        raise BadInput("--dtype", "is for --local: elsewhere the registration says it")


def _prompt(said: str) -> str:
    """The text to continue. Raises BadInput: it is empty."""
    text = sys.stdin.read() if said == "-" else said
    if not text:
        raise BadInput("prompt", "is empty; nothing was bought")
    return text


def _limits(stop: list[str] | None, json_schema: Path | None, logprobs: int | None) -> dict[str, Any]:
    """The parameters that say where a text ends, what it may be, and what is told of its tokens; those that are given.

    Raises:
        BadInput: the schema's file cannot be read.

    """
    params: dict[str, Any] = {}
    if stop:
        params["stop"] = stop
    if json_schema is not None:
        params["json_schema"] = _text(json_schema)
    if logprobs is not None:
        params["logprobs"] = logprobs
    return params


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
    can_write(report)
    if local is not None:
        only_here("--local", config=config, model=model, budget=budget, edge_codec=edge_codec, verify=verify, wait=wait)
        local = encoder_folder(local)
    lines = [line for line in sys.stdin.read().splitlines() if line.strip()] if texts == ["-"] else texts
    if not lines or not all(line.strip() for line in lines):
        raise BadInput("texts", "there is none, or an empty one; nothing was bought")
    if local is not None:
        done = _embed_here(local, lines)
    else:
        config, customer = needs(config, model)
        asked = PurchaseOptions.from_options(budget, edge_codec, verify=verify, wait=wait)
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
        _show_bill(done, config, streamed=False, sampled=asked.verify)


def _quote(customer: CustomerConfig, model: str, question: _Question, asked: PurchaseOptions, *, json: bool) -> None:
    """Print what the generation would come to."""
    from nodewire.cli.buy.job_view import ObservableCustomer, show_plan

    async def quoted() -> dict[str, Any]:
        with name_relays(customer.relays):
            async with ObservableCustomer(customer, show=not json, asks=not json, is_buyer=False) as opened:
                prompt, params = question.text, dict(question.params)
                if question.chat:
                    prompt, params = await _asked(prompt, params, await opened.chat_template(model))
                params.pop("resplit_msat", None)
                terms = asked.arguments(opened)
                made = await opened.quote(model, prompt, terms=terms["terms"], edge_codec=terms["edge_codec"], **params)
                ads = await opened.session.public_record.ads(made.plan)
                if not json:
                    show_plan(made, {public: ad.name for public, ad in ads.items()})
                return made.document()

    done = uvloop.run(quoted())
    if json:
        print_json(done)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(generate)
    app.command(rich_help_panel=CUSTOMERS)(embed)


def _generate_with_transcript(
    customer: CustomerConfig, model: str, question: _Question, asked: PurchaseOptions, transcript: Path | None
) -> dict[str, Any]:
    """Buy it; its signed record goes into that file, if there is one."""
    if transcript is None:
        return uvloop.run(_generate(customer, model, question, asked))
    recorded = replace(question, params={**question.params, "transcribe": True})
    done = uvloop.run(_generate(customer, model, recorded, asked))
    transcript.write_bytes(orjson.dumps(done.pop("transcript"), option=orjson.OPT_INDENT_2))
    return done


async def _generate(
    config: CustomerConfig | SwarmCustomer, model: str, question: _Question, asked: PurchaseOptions
) -> dict[str, Any]:
    from nodewire.cli.buy.job_view import GrowingText

    async with open_customer(config, show=question.show) as customer:
        prompt, params = question.text, question.params
        text = GrowingText("" if question.chat else prompt)
        if question.chat:
            prompt, params = await _asked(prompt, params, await customer.chat_template(model))
        try:
            async with aclosing(customer.generate(model, prompt, **asked.arguments(customer), **params)) as pieces:
                async for piece in pieces:
                    if question.show:
                        text.add(piece.text)
        finally:
            text.end()
        return {**customer.last, "names": customer.names}


async def _embed(
    config: CustomerConfig, model: str, texts: list[str], asked: PurchaseOptions, *, show: bool
) -> dict[str, Any]:
    async with open_customer(config, show=show) as customer:
        vectors = await customer.embed(model, texts, **asked.arguments(customer))
        return {**customer.last, "names": customer.names, "vectors": vectors.tolist()}


async def _asked(message: str, params: dict[str, Any], template: ChatTemplate | None) -> tuple[str, dict[str, Any]]:
    """The prompt that a message is by its model's template, and what is asked for with it. Raises BadInput."""
    from nodewire.chat.renderer import Renderer

    if template is None:
        raise BadInput("--chat", "the model has no chat template: without --chat it continues the text")
    renderer = Renderer()
    try:
        prompt = await renderer.render(template, [{"role": "user", "content": message}])
    finally:
        await renderer.close()
    return prompt, {**params, "special_tokens": False}


def _generate_here(folder: Path, question: _Question, engine: _Engine) -> dict[str, Any]:
    from nodewire.cli.buy.job_view import GrowingText

    prompt, params = question.text, question.params
    shown = GrowingText("" if question.chat else prompt) if question.show else None
    if question.chat:
        from nodewire.chat.folder import chat_template

        prompt, params = uvloop.run(_asked(prompt, params, chat_template(folder)))
    with loading(f"loading {escape(str(folder))}") if question.show else nullcontext():
        steps = _steps(folder, prompt, params, engine)
    ids: list[int] = []
    texts: list[str] = []
    moments: list[float] = []
    likely: list[Any] = []

    def keep_likely(said: str) -> None:
        likely.append([dict(zip(("id", "logprob", "text"), row, strict=True)) for row in orjson.loads(said)])

    started = time.perf_counter()
    try:
        for token, text in steps(keep_likely):
            moments.append(time.perf_counter())
            ids.append(token)
            texts.append(text)
            if shown:
                shown.add(text)
    finally:  # Ctrl-C, too
        if shown:
            shown.end()
    rate = (len(moments) - 1) / (moments[-1] - moments[0]) if len(moments) > 1 else 0.0
    first_ms = round((moments[0] - started) * 1000, 1) if moments else 0.0
    if question.show:
        notes.print(f"[dim]{counted(len(ids), 'token')} · {rate:.1f} tokens/s · first after {first_ms:.0f} ms[/]")
    return {
        "ids": ids,
        "text": "".join(texts),
        **({"logprobs": likely} if "logprobs" in params else {}),
        "tokens_per_s": round(rate, 1),
        "first_token_ms": first_ms,
    }


def _steps(
    folder: Path, prompt: str, params: dict[str, Any], engine: _Engine
) -> Callable[[Callable[[str], None]], Iterator[tuple[int, str]]]:
    """What makes the steps of a generation here: by the plain loop, or as a ring's driver, with guesses."""
    if engine.draft is None and params.get("lookahead", 1) == 1:
        from nodewire.llm.local.reference import LocalDecoder
        from nodewire.llm.tokens.sampling_params import parse_params

        whole = LocalDecoder(folder, alone=True, dtype=engine.dtype, threads=engine.threads)
        sampling = parse_params(params, whole.positions)
        return lambda told: whole.steps(prompt, sampling, told)
    from nodewire.llm.local.speculative import LocalSpeculation

    alone = LocalSpeculation(folder, draft=engine.draft, dtype=engine.dtype, threads=engine.threads)
    return lambda told: alone.steps(prompt, {"lookahead": _LOOKAHEAD, **params}, told)


def _embed_here(folder: Path, texts: list[str]) -> dict[str, Any]:
    from nodewire.graph.reference import embed as embed_whole

    return {"vectors": embed_whole(folder, texts).tolist()}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("--json-schema", f"{file} cannot be read: {error}") from error


def _show_speed(done: Mapping[str, Any]) -> None:
    from nodewire.cli.buy.ring_map import show_speed

    show_speed(done)


def _show_bill(done: Mapping[str, Any], config: Path, *, streamed: bool, sampled: bool) -> None:
    from nodewire.cli.buy.job_view import show_bill

    show_bill(done, config, streamed=streamed, sampled=sampled)
