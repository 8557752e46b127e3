"""`nodewire chat`: talk with a model of the market in a terminal, or line by line from a script."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import orjson
import typer
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from nodewire.cli.buy.provider_options import Driver, Ends, Exclude, Region, Trusted, from_whom
from nodewire.cli.buy.purchase import MODEL_HELP, Config, Resplit, needs, only_here
from nodewire.cli.buy.sampling_options import MinP, Repetition, Seed, TopK, TopP, drawn
from nodewire.cli.common.local import Local, Threads, model_folder
from nodewire.cli.common.roles import name_relays
from nodewire.cli.output import CUSTOMERS, console, in_words, notes, plain, print_json, sats, steps
from nodewire.cli.swarm.swarm_options import Key, Lookahead, Split, State, SwarmAt, customer_of, no_market, only_swarm
from nodewire.config import CustomerConfig, parse_msat
from nodewire.errors import NodewireError

if TYPE_CHECKING:
    from nodewire.cli.buy.conversation import Answer, LoopThread, Talk
    from nodewire.swarm.member import SwarmCustomer

_HELP = """\
/ring        show the providers of the last answer, their prices and distances
/clear       forget the conversation
/save FILE   write the conversation to a JSON file
/quit        leave (Ctrl-D, too)
Ctrl-C breaks an answer off"""


def chat(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)] = "",
    config: Config = None,
    local: Local = None,
    threads: Threads = 1,
    swarm: SwarmAt = None,
    split: Split = "",
    key: Key = None,
    state: State = None,
    lookahead: Lookahead = None,
    system: Annotated[str, typer.Option(help="The system message: the model reads it first.")] = "",
    max_tokens: Annotated[int, typer.Option(help="The most tokens of one answer.")] = 512,
    temperature: Annotated[float, typer.Option(help="The temperature of sampling; 0 is greedy.")] = 0.7,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    repetition: Repetition = 1.0,
    seed: Seed = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text (may be repeated).")] = None,
    template: Annotated[Path | None, typer.Option(help="A file with the chat template, for a model without.")] = None,
    budget: Annotated[str, typer.Option(help="The most that the whole talk may cost, such as 50sat.")] = "",
    resplit: Resplit = "",
    driver: Driver = None,
    trusted: Trusted = None,
    ends: Ends = None,
    exclude: Exclude = None,
    region: Region = None,
    json: Annotated[bool, typer.Option("--json", help="Read a message from every line; print JSON lines.")] = False,
) -> None:
    """Talk with a model on strangers' machines, on a swarm's, or here."""
    from nodewire.cli.buy.conversation import Conversation, LoopThread

    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts behind itself ignores it
    whom = {"driver": driver, "trusted": trusted, "ends": ends, "exclude": exclude, "region": region}
    if local is not None:
        only_here("--local", model=model, config=config, budget=budget, resplit=resplit, **whom)
        local = model_folder(local)
    if swarm is None:
        only_swarm(split=split, key=key, state=state, lookahead=lookahead)
    customer: CustomerConfig | SwarmCustomer | None = None
    if swarm is not None:
        no_market(model=model, config=config, local=local, budget=budget, resplit=resplit, **whom)
        customer = customer_of(swarm, split, key, state, lookahead)
        model = customer.file.swarm.address
    elif local is None:
        _, customer = needs(config, model)
        customer = from_whom(customer, driver, trusted, ends, exclude, region)
    params: dict[str, Any] = {"max_tokens": max_tokens}
    params |= drawn(temperature, top_p, top_k, min_p, repetition, seed)
    if stop:
        params["stop"] = stop
    if resplit:
        params["resplit_msat"] = parse_msat(resplit)
    beside, stack = LoopThread(), AsyncExitStack()
    face = _InJson() if json else _OnTerminal()
    try:
        if customer is not None:
            budget_msat = parse_msat(budget) if budget else None
            opening = Conversation.open(
                stack, customer, model, template, params, asks=not json, system=system, budget_msat=budget_msat
            )
            with name_relays(customer.relays):
                _talk(beside, beside.run(opening), face)
        elif local is not None:
            from nodewire.cli.buy.local_chat import TalkHere

            with steps(f"loading {escape(str(local))}"):
                talk = beside.run(TalkHere.open(stack, local, template, params, threads, system))
            _talk(beside, talk, face)
    finally:
        beside.run(stack.aclose())
        beside.close()


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(chat)


class _InJson:
    """For scripts: a document a line."""

    def ask(self) -> str | None:
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None

    def welcome(self, talk: Talk) -> None:
        print_json({"ready": "chat", "model": talk.address})

    def answering(self) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def show(self, text: str, answer: Answer) -> None:
        if text:
            print_json({"piece": text})

    def interrupted(self, talk: Talk) -> None:
        return

    def answered(self, answer: Answer, talk: Talk) -> None:
        print_json({"answer": answer.document(), "spent_msat": talk.cost_msat})

    def failed(self, error: NodewireError) -> None:
        print_json({"error": error.as_dict()})

    def ring(self, rows: list[dict[str, Any]]) -> None:
        print_json({"ring": rows})

    def says(self, text: str) -> None:
        print_json({"note": text})


class _OnTerminal:
    """Whole lines of an answer are printed for good; the last one, and what it comes to, are drawn anew meanwhile."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._line = ""
        with suppress(ImportError):
            import readline  # noqa: F401 - input() edits lines with it

    def ask(self) -> str | None:
        try:
            if sys.stdin.isatty():
                return input("\n› ")
            line = sys.stdin.readline()
            return line.rstrip("\n") if line else None
        except EOFError:
            return None
        except KeyboardInterrupt:
            notes.print("\n[dim]/quit leaves[/]")
            return ""

    def welcome(self, talk: Talk) -> None:
        notes.print(f"[dim]{talk.address}\n/help says what there is besides messages[/]", soft_wrap=True)

    def answering(self) -> Self:
        return self

    def __enter__(self) -> Self:
        self._line = ""
        if console.is_terminal:
            self._live = Live(
                Text("…", style="dim"), console=console, refresh_per_second=8, transient=True, redirect_stdout=False
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        console.print(Text(self._line), soft_wrap=True)

    def show(self, text: str, answer: Answer) -> None:
        if self._live is None:
            print(plain(text) if sys.stdout.isatty() else text, end="", flush=True)
            return
        *whole, self._line = (self._line + plain(text)).split("\n")
        if whole:
            self._live.console.print(Text("\n".join(whole)), soft_wrap=True)
        self._live.update(Text.assemble(self._line, "\n", (_figures(answer), "dim")))

    def interrupted(self, talk: Talk) -> None:
        notes.print(f"[dim]breaking off{'; what came is being paid' if talk.is_paid else ''}[/]")

    def answered(self, answer: Answer, talk: Talk) -> None:
        from nodewire.cli.buy.job_view import told_of

        ended = {"stopped": "broken off · ", "length": "cut at --max-tokens · ", "budget": "the budget is used up · "}
        said = f"{ended.get(answer.reason, '')}{_figures(answer)} · first after {answer.first_s * 1000:.0f} ms"
        cost = f" · {sats(talk.cost_msat)} in all" if talk.cost_msat else ""
        notes.print(f"[dim]{said}{cost}[/]", soft_wrap=True)
        for move in answer.moves:
            notes.print(f"[dim]{told_of(move)}[/]", soft_wrap=True)

    def failed(self, error: NodewireError) -> None:
        notes.print(Text(f"{error.code}: {plain(in_words(error))}", style="red"), soft_wrap=True)

    def ring(self, rows: list[dict[str, Any]]) -> None:
        from nodewire.cli.buy.job_view import named

        if not rows:
            notes.print("[dim]nothing has been answered yet[/]")
            return
        table = Table(
            "task", "provider", "a million tokens", "from here", "to the next", box=None, header_style="bold dim"
        )
        for row in rows:
            far = [f"{row[at]:.1f} ms" if row[at] is not None else "-" for at in ("from_here_ms", "to_next_ms")]
            provider = named(row["provider"], {row["provider"]: row["name"]})
            table.add_row(row["task"], provider, sats(row["msat_per_million"]), *far)
        console.print(table)

    def says(self, text: str) -> None:
        notes.print(Text(text, style="dim"), soft_wrap=True)


def _figures(answer: Answer) -> str:
    cost = f" · {sats(answer.cost_msat)}" if answer.cost_msat else ""
    return f"{answer.tokens} tokens · {answer.tokens_per_s:.1f} tokens/s{cost}"


def _talk(beside: LoopThread, talk: Talk, face: _InJson | _OnTerminal) -> None:
    face.welcome(talk)
    commands: dict[str, Callable[[str], None]] = {
        "/help": lambda _: face.says(_HELP + (": what came is paid, the rest is not bought." if talk.is_paid else ".")),
        "/clear": lambda _: _clear(talk, face),
        "/save": lambda file: _save(talk, face, file),
        "/ring": lambda _: face.ring(beside.run(talk.ring())),
    }
    while (line := face.ask()) is not None:
        name, _, rest = line.strip().partition(" ")
        if name == "/quit":
            return
        if not name:
            continue
        try:
            if name in commands:
                commands[name](rest.strip())
            elif name.startswith("/"):
                face.says(f"{name} is no command; /help says which there are")
            else:
                with face.answering():
                    answer = beside.run(talk.answer(line, face.show), interrupted=lambda: face.interrupted(talk))
                face.answered(answer, talk)
        except NodewireError as error:  # the next question may have more luck
            face.failed(error)


def _clear(talk: Talk, face: _InJson | _OnTerminal) -> None:
    talk.history.clear()
    face.says("forgotten")


def _save(talk: Talk, face: _InJson | _OnTerminal, file: str) -> None:
    file = file or "chat.json"
    try:
        Path(file).write_bytes(orjson.dumps(talk.messages, option=orjson.OPT_INDENT_2))
    except OSError as error:
        face.says(f"{file}: {error.strerror}; `/save FILE` names another file")
        return
    face.says(f"written to {file}")
