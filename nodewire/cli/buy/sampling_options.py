"""Options that say how the next token is drawn: what generate and chat share."""

from __future__ import annotations

from typing import Annotated, Any

import typer

_PANEL = "How tokens are drawn"

TopP = Annotated[
    float, typer.Option(help="The probability of the nucleus that tokens are drawn from.", rich_help_panel=_PANEL)
]
TopK = Annotated[int, typer.Option(help="The most tokens that are drawn from; 0 is no bound.", rich_help_panel=_PANEL)]
MinP = Annotated[
    float,
    typer.Option(help="The least probability of a token, as a share of the likeliest one's.", rich_help_panel=_PANEL),
]
Repetition = Annotated[
    float,
    typer.Option(
        "--repetition-penalty",
        help="The penalty of tokens that came already; above 1 they are less likely.",
        rich_help_panel=_PANEL,
    ),
]
Seed = Annotated[
    int, typer.Option(help="The seed of sampling: the same seed gives the same text.", rich_help_panel=_PANEL)
]


def drawn(temperature: float, top_p: float, top_k: int, min_p: float, repetition: float, seed: int) -> dict[str, Any]:
    """The parameters of kind 8843; those that change nothing are left out."""
    params: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "seed": seed}
    if top_k:
        params["top_k"] = top_k
    if min_p:
        params["min_p"] = min_p
    if repetition != 1.0:
        params["repetition_penalty"] = repetition
    return params
