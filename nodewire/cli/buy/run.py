"""`nodewire run`: named tensors through any model on the market, or through one in a folder, here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
import uvloop

from nodewire.cli.buy.purchase import (
    Budget,
    Codecs,
    PurchaseOptions,
    Report,
    Verify,
    Wait,
    can_write,
    only_here,
    open_customer,
)
from nodewire.cli.common.roles import check_model, load_customer
from nodewire.cli.output import CUSTOMERS, Json, console, notes, one_line, print_json
from nodewire.config import CustomerConfig
from nodewire.errors import BadInput, Unsupported

if TYPE_CHECKING:
    from nodewire.protocol.tensors.frame import Array

_SHOWN = 8
"""Numbers of an output."""


def run(
    manifest: Annotated[
        str,
        typer.Argument(
            help="The model's name or address, as --model of `generate`. Or a folder that `register --out` or Python's"
            " `register` wrote: its model runs here, without any market."
        ),
    ],
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The customer's TOML file.")] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            help="A .safetensors, .npz or .npy file of inputs by name (may be repeated); NAME=FILE names the one of a"
            " .npy.",
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="Every --input is a call of its own.")] = False,
    text: Annotated[list[str] | None, typer.Option(help="A sentence for an encoder (may be repeated).")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the outputs to this safetensors file.")] = None,
    budget: Budget = "",
    edge_codec: Codecs = None,
    verify: Verify = False,
    wait: Wait = False,
    report: Report = None,
    json: Json = False,
) -> None:
    """Compute a model's outputs from named tensors on strangers' machines, or here if it lies in a folder."""
    can_write(report)
    can_write(out, "--out")
    folder = Path(manifest) if Path(manifest).is_dir() else None
    if folder is not None:
        only_here(
            "a folder",
            config=config,
            text=text,
            budget=budget,
            edge_codec=edge_codec,
            verify=verify,
            wait=wait,
            report=report,
        )
    else:
        check_model(manifest, "MANIFEST")
    if bool(input) == bool(text):
        raise BadInput("--input", "give files of tensors, or with an encoder --text, and not both")
    if folder is not None:
        outputs = _run_here(folder, _calls(input or (), each=each))
        if out is not None:
            _write(out, outputs, each=each)
        _show(outputs, {}, each=each, values=out is None, json=json)
        return
    if config is None:
        raise BadInput("--config", "the customer's TOML file is needed; a folder in place of an address is run here")
    customer, calls = load_customer(config), _calls(input or (), each=each)
    asked = PurchaseOptions.from_options(budget, edge_codec, verify=verify, wait=wait)
    done, outputs = uvloop.run(_run(customer, manifest, calls, text or [], asked, show=not json))
    done = {**done, "verified": _verified(done, asked)}
    if out is not None:
        _write(out, outputs, each=each)
    if report is not None:
        report.write_bytes(orjson.dumps(done, option=orjson.OPT_INDENT_2))
    _show(outputs, done, each=each, values=out is None, json=json)
    if json:
        return
    from nodewire.cli.buy.job_view import show_bill

    show_bill(done, config, streamed=False, sampled=asked.verify)
    if not asked.verify:
        notes.print("[dim]nobody has computed it again: --verify or --wait have a sample of it checked[/]")


def _show(
    outputs: Sequence[Mapping[str, Array]], done: Mapping[str, Any], *, each: bool, values: bool, json: bool
) -> None:
    if json:
        shown = [{name: _document(array, values=values) for name, array in one.items()} for one in outputs]
        print_json({**done, "outputs": shown if each else shown[0]})
        return
    for number, one in enumerate(outputs):
        for name, array in one.items():
            console.print(_line(f"{number}.{name}" if each else name, array), soft_wrap=True)


def _run_here(folder: Path, calls: Sequence[Mapping[str, Any]]) -> list[dict[str, Array]]:
    """What the tasks in a folder make of each call, one after the other in this process.

    Raises:
        BadInput, TooLarge: a call is not what the model takes, or larger; NotFound: a blob is missing.
        Unsupported: the model is not called with tensors.

    """
    from nodewire.cli.common.registration_folder import registration_in
    from nodewire.customer.calls.arrays import array_of, raw, to_torch
    from nodewire.graph.registration import in_process  # torch is imported here, not before
    from nodewire.protocol.model.signature import Signature

    made = registration_in(folder)
    if made.manifest.mode != "run":
        raise Unsupported(
            "mode", f"{made.manifest.name} serves {made.manifest.mode}; here only tensors go through tasks"
        )
    signature = Signature.from_manifest(made.manifest)
    arrays = [signature.arrays(call, array_of) for call in calls]
    for one in arrays:
        signature.check(one)
    outputs = []
    for one in arrays:
        given = {name: to_torch(array) for name, array in one.items()}
        found = in_process.evaluate(made.manifest, given, lambda task: in_process.load(made, task))
        outputs.append({name: raw(name, tensor) for name, tensor in found.items()})
    return outputs


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=CUSTOMERS)(run)


async def _run(
    config: CustomerConfig,
    model: str,
    calls: list[dict[str, Any]],
    texts: list[str],
    asked: PurchaseOptions,
    *,
    show: bool,
) -> tuple[dict[str, Any], list[dict[str, Array]]]:
    from nodewire.protocol.tensors.frame import Array

    async with open_customer(config, show=show) as customer:
        if texts:
            vectors = await customer.embed(model, texts, **asked.arguments(customer))
            outputs = [{"vectors": Array("float32", vectors.shape, vectors.tobytes())}]
        else:
            outputs = await customer.run(model, calls, **asked.arguments(customer))
        return {**customer.last, "names": customer.names}, outputs


def _calls(inputs: Sequence[str], *, each: bool) -> list[dict[str, Any]]:
    """Every file's tensors, as one call or as many. Raises BadConfig, BadInput."""
    from nodewire.customer.calls.arrays import raw
    from nodewire.customer.calls.tensor_files import read

    calls: list[dict[str, Any]] = []
    for text in inputs:
        name, named, file = text.rpartition("=")
        if not named or Path(text).is_file():
            name, file = "", text
        found = {one: raw(one, value) for one, value in read(Path(file)).items()}
        if name:
            if len(found) != 1:
                raise BadInput("--input", f"{file} has {len(found)} tensors; a name is for the one of a .npy")
            found = {name: next(iter(found.values()))}
        if each or not calls:
            calls.append(found)
        elif twice := calls[0].keys() & found.keys():
            raise BadInput(min(twice)[:80], "is in two files; --each makes every file a call of its own")
        else:
            calls[0].update(found)
    return calls


def _write(path: Path, outputs: Sequence[Mapping[str, Array]], *, each: bool) -> None:
    from nodewire.customer.calls.tensor_files import write

    write(
        path,
        {f"{number}.{name}" if each else name: a for number, one in enumerate(outputs) for name, a in one.items()},
    )


def _verified(done: Mapping[str, Any], asked: PurchaseOptions) -> str:
    """none: nobody was asked; pending: it is not known yet; undrawn: nothing of it was drawn; passed; failed."""
    if not asked.wait:
        return "pending" if asked.verify else "none"
    last = [one for one in done["verdicts"] if one["request"] == done["request"]]
    if any(one["outcome"] in ("fail", "withheld") for one in last) or done["uncertified"]:
        return "failed"
    return "passed" if any(one["outcome"] == "pass" for one in last) else "undrawn"


def _document(array: Array, *, values: bool) -> dict[str, Any]:
    """A tensor as plain data; what is no number is null."""
    from nodewire.customer.calls.arrays import numpy_of

    said: dict[str, Any] = {"dtype": array.dtype, "shape": list(array.shape)}
    return {**said, "values": numpy_of(array).tolist()} if values else said


def _line(name: str, array: Array) -> str:
    from nodewire.customer.calls.arrays import numpy_of

    numbers = numpy_of(array).reshape(-1)
    first = ", ".join(f"{x:+.4f}" if numbers.dtype.kind == "f" else str(x) for x in numbers[:_SHOWN])
    more = " …" if len(numbers) > _SHOWN else ""
    return f"[bold]{one_line(name)}[/]  {array.dtype} {one_line(str(list(array.shape)))}  [dim]{first}{more}[/]"
