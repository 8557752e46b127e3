"""A mixture of two experts as graph tasks: each is sent some of the rows, a joiner puts them back in order."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from nodewire.graph import entry
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Actor, Limits

F32, I64 = torch.float32, torch.int64
WIDTH, MOST, EXPERTS = 4, 64, 2


def expert(k: int) -> Program:
    """x W for the rows that it is sent."""
    return Program(
        dims={"n": MOST},
        volume=MOST,
        inputs=(Input("x", F32, ("n", WIDTH), f"rows.{k}"),),
        weights=(Weight("w", F32, (WIDTH, WIDTH)),),
        nodes=(Node("y", "aten.mm.default", (Ref("x"), Ref("w"))),),
        outputs=(Output("y", "y", F32, ("n", WIDTH), f"made.{k}"),),
    )


def joiner() -> Program:
    """The rows of both experts, in the order that the router says."""
    return Program(
        dims={"n": MOST, "m": MOST, "t": MOST},
        volume=MOST**3,
        inputs=(
            Input("a", F32, ("n", WIDTH), "made.0"),
            Input("b", F32, ("m", WIDTH), "made.1"),
            Input("order", I64, ("t",), "order"),
        ),
        weights=(),
        nodes=(
            Node("rows", "aten.cat.default", ([Ref("a"), Ref("b")], 0)),
            Node("out", "aten.index_select.default", (Ref("rows"), 0, Ref("order"))),
        ),
        outputs=(Output("out", "out", F32, ("t", WIDTH), "joined"),),
    )


def loaded(folder: Path) -> dict[str, Actor]:
    """By task, its actor; expert k makes WIDTH (k + 1) of every one in a row of ones."""
    found: dict[str, Actor] = {}
    for k in range(EXPERTS):
        save_file({"w": torch.full((WIDTH, WIDTH), float(k + 1))}, folder / f"w{k}")
        found[f"expert.{k}"] = entry.load("graph", expert(k).encode(), [folder / f"w{k}"], Limits(10**6))
    return found | {"join": entry.load("graph", joiner().encode(), [], Limits(10**6))}
