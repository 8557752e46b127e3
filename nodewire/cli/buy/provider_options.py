"""Options that say from whom one request may be bought, in place of what the configuration's [whom] says."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from nodewire.config import CustomerConfig, ProviderChoice
from nodewire.errors import BadInput
from nodewire.protocol.encoding.validation_errors import in_words

_PANEL = "From whom"
_PEOPLE = " An npub, or a published list: an naddr or 30000:AUTHOR:NAME (may be repeated)."

Driver = Annotated[
    str | None,
    typer.Option(
        help="The part of the model on this machine: nothing (provider) or the driver (local). With ends the"
        " first and last layers are here, too. Text and sampling stay here with local and ends.",
        rich_help_panel=_PANEL,
    ),
]
Trusted = Annotated[
    list[str] | None,
    typer.Option(help="Buy only from these people." + _PEOPLE, rich_help_panel=_PANEL, metavar="PERSON"),
]
Ends = Annotated[
    list[str] | None,
    typer.Option(
        help="Buy the driver and the first and last layers only from these people." + _PEOPLE,
        rich_help_panel=_PANEL,
        metavar="PERSON",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(help="Buy nothing from these people." + _PEOPLE, rich_help_panel=_PANEL, metavar="PERSON"),
]
Region = Annotated[
    list[str] | None,
    typer.Option(
        help="Buy only from providers that say that they are in this region (may be repeated).", rich_help_panel=_PANEL
    ),
]

_OPTIONS = {
    "driver": "--driver",
    "trusted": "--trusted",
    "ends": "--ends",
    "excluded": "--exclude",
    "regions": "--region",
}
"""By the fields of `ProviderChoice`."""


def from_whom(
    config: CustomerConfig,
    driver: str | None,
    trusted: list[str] | None,
    ends: list[str] | None,
    exclude: list[str] | None,
    region: list[str] | None,
) -> CustomerConfig:
    """The configuration with what the options say. Raises BadInput: one of them cannot be."""
    given = {"driver": driver, "trusted": trusted, "ends": ends, "excluded": exclude, "regions": region}
    said = {name: value for name, value in given.items() if value}
    if not said:
        return config
    try:
        whom = ProviderChoice.model_validate({**config.whom.model_dump(), **said})
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(_OPTIONS[str(first["loc"][0])], in_words(first)) from error
    return config.model_copy(update={"whom": whom})
