"""FEDSTR's own events, for customers who speak that layout: requests 8000, feedback 7000, results 6000, ads 31990.

FEDSTR (arXiv 2404.15834) follows NIP-90. nips/37-fedstr.md, says which tags are read, and why nothing is said
about requests that do not look like one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import orjson
from pydantic import Field

from nodewire.errors import BadEvent, BadInput, BadTag, NodewireError, TooLarge, Unsupported
from nodewire.nostr import event as _event
from nodewire.nostr.nips import nip44
from nodewire.protocol import kinds
from nodewire.protocol.committee.committee import HttpUrl
from nodewire.protocol.encoding import tags
from nodewire.protocol.encoding.schema import Count, Hex32, Schema
from nodewire.protocol.model.families import READING_TOML
from nodewire.training.protocol.recipe import MAX_SHARDS, Recipe
from nodewire.training.protocol.round import MAX_ROUNDS, OUTPUT

if TYPE_CHECKING:
    from nodewire.nostr.event import Event, Tags
    from nodewire.nostr.keys import Keys
    from nodewire.protocol.job.feedback import Status
    from nodewire.training.protocol.trainer_ad import Trainer

MAX_REQUEST_BYTES = 24_576
"""Of a request's event as JSON: its result repeats it."""
MAX_INPUTS = 8
MAX_INPUT_BYTES = 1_280
"""Of an input's tag in the plain."""
RUNS = {"fedavg": kinds.FEDAVG, "diloco": kinds.DILOCO}
Marker = Literal["data", "state"]
_PRICES = ("msat_per_pflop", "least_msat", "deposit_ppm")
_LIMITS = ("families", "gflops", "memory_bytes", "most_bytes", "pow_bits")
_DILOCO = {"method": "nesterov", "lr": 0.7, "momentum": 0.9}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the plaintext of that SHA-256 and size is: a URL, or the event itself (`inline`)."""

    sha256: str
    size: int
    url: str = ""
    inline: bytes = b""
    key: str | None = None
    """What is at the URL is sealed with it (nips/34-training-rounds.md)."""


@dataclass(frozen=True, slots=True)
class FedstrRequest:
    """A parsed request. `kind` is that of the round that it asks for, 8840 or 8841."""

    id: str
    customer: str
    created_at: int
    kind: int
    recipe: Recipe
    round: int
    index: int
    deadline_s: int
    bid_msat: int | None
    """What the customer pays at most; None: it does not say."""
    state: Source
    data: Source | str
    """A string: the id of the earlier request, or of its result, whose data it is."""
    inputs: Tags
    """The request's `i` tags as they are public."""
    text: str
    """The request's event as JSON."""


class Output(Schema):
    """What a result's content is, once decrypted. `sha256` and `bytes` are of the ciphertext at each of the `urls`."""

    MAX_BYTES: ClassVar[int] = 16_384
    ERROR: ClassVar[type[BadInput]] = BadEvent

    v: Literal[1] = 1
    urls: tuple[HttpUrl, ...] = Field(max_length=8)
    sha256: Hex32
    bytes: Count
    key: Hex32
    update_sha256: Hex32
    """Of the plaintext: the update as a safetensors file."""
    update_bytes: Count
    samples: Count
    loss: Count
    """The last one of training, in millionths; the provider's word and no more."""


def is_ours(event: Event, keys: Keys) -> bool:
    """Whether the event asks this provider to train something: kind 8000 has other meanings, too (NIP-43)."""
    if event.kind != kinds.FEDSTR or keys.public not in event.values("p"):
        return False
    try:
        return _param(_said(event, keys), "task") == "train"
    except NodewireError:  # not encrypted for us, or no such tags: somebody else's business
        return False


def parse(event: Event, keys: Keys) -> FedstrRequest:
    """The request in `event`, whose signature has been checked and which `is_ours`.

    Raises:
        TooLarge, BadTag, BadEvent: it is malformed, naming the tag.
        BadRecipe: its recipe is.
        Unsupported: something that is not served by this layout.

    """
    text = event.to_json()
    if len(text.encode()) > MAX_REQUEST_BYTES:
        raise TooLarge("request", f"{len(text.encode())} bytes, at most {MAX_REQUEST_BYTES}")
    said = _said(event, keys)
    run = _param(said, "run")
    if run not in RUNS:
        raise Unsupported("run", f"not one of {', '.join(RUNS)}")
    output = event.tag("output")
    if output not in (None, OUTPUT):
        raise Unsupported("output", f"only {OUTPUT}")
    recipe = _recipe(said, run)
    if recipe.adapter is not None:
        raise Unsupported("adapter", "frozen weights travel with kinds 8840 and 8841 only")
    if recipe.compression.carries:
        raise Unsupported("compression", "what is carried between rounds is known by audits only: 8840 and 8841")
    state = source(event, keys, "state")
    if isinstance(state, str):
        raise Unsupported("state", "what a round begins with is given, since only its customer has everybody's results")
    bid = event.tag("bid")
    return FedstrRequest(
        id=event.id,
        customer=event.pubkey,
        created_at=event.created_at,
        kind=RUNS[run],
        recipe=recipe,
        round=_number(said, "round", 0, MAX_ROUNDS - 1),
        index=_number(said, "index", 0, MAX_SHARDS - 1),
        deadline_s=_number(said, "deadline", recipe.deadline, 30 * 86_400) or 1,
        bid_msat=None if bid is None else tags.number("bid", bid, most=2**63 - 1),
        state=state,
        data=source(event, keys, "data"),
        inputs=_repeated(event),
        text=text,
    )


def source(event: Event, keys: Keys, marker: Marker) -> Source | str:
    """The input of that marker: where it is, or the id of the job whose input it is.

    Raises:
        BadTag: there is not one, or its hash, size or key is missing or malformed.
        Unsupported: its type is another.

    """
    said = _said(event, keys)
    inputs = [tag for tag in said if tag[0] == "i"]
    if len(inputs) > MAX_INPUTS:
        raise BadTag("i", f"more than {MAX_INPUTS}")
    marked = [tag for tag in inputs if len(tag) > 2 and _marker(tag) == marker]
    if len(marked) != 1:
        raise BadTag("i", f"{len(marked)} inputs marked {marker}, expected one")
    value, type_ = marked[0][1:3]
    if type_ == "job":
        return tags.is_hex32("i", value)
    if type_ == "text":
        try:
            inline = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadTag("i", f"{marker}: not base64") from error
        return Source(hashlib.sha256(inline).hexdigest(), len(inline), inline=inline)
    if type_ != "url":
        raise Unsupported("i", f"{marker}: {type_[:20]!r} is not url, job or text")
    hashes = [tag for tag in said if tag[0] == "x" and tag[2:3] == (marker,)]
    if len(hashes) != 1 or len(hashes[0]) != 4:
        raise BadTag("x", f"not one [x, sha256, {marker}, bytes]")
    sealed_with = [tag[1] for tag in said if tag[0] == "key" and tag[2:3] == (marker,)]
    if len(sealed_with) > 1:
        raise BadTag("key", f"{len(sealed_with)} of {marker}")
    return Source(
        tags.is_hex32("x", hashes[0][1]),
        tags.number("x", hashes[0][3], most=2**53 - 1),
        url=value,
        key=tags.is_hex32("key", sealed_with[0]) if sealed_with else None,
    )


@dataclass(frozen=True, slots=True)
class Bill:
    """What is to be paid, and the invoice to pay it by; "" where it needs none, or has been paid."""

    amount_msat: int = 0
    bolt11: str = ""


NO_BILL = Bill()


def feedback(
    keys: Keys,
    request: str,
    customer: str,
    status: Status,
    *,
    created_at: int,
    text: str = "",
    bill: Bill = NO_BILL,
    ciphertext: str = "",
) -> Event:
    """Kind 7000, as NIP-90 has it: with an amount, its invoice."""
    said = [["e", request], ["p", customer], ["k", str(kinds.FEDSTR)], ["status", status, text[:200]]]
    if bill.bolt11:
        said.append(["amount", str(bill.amount_msat), bill.bolt11])
    if ciphertext:
        said.append(["encrypted"])
    return _event.sign(keys, kinds.FEEDBACK, created_at=created_at, content=ciphertext, tags=said)


def result(keys: Keys, asked: FedstrRequest, ciphertext: str, *, created_at: int, bill: Bill) -> Event:
    """Kind 6000, with what is still to be paid and its invoice."""
    said = [["request", asked.text], ["e", asked.id], ["p", asked.customer], *map(list, asked.inputs)]
    said.append(["amount", str(bill.amount_msat), *([bill.bolt11] if bill.bolt11 else [])])
    return _event.sign(
        keys, kinds.FEDSTR_RESULT, created_at=created_at, content=ciphertext, tags=[*said, ["encrypted"]]
    )


def ad(keys: Keys, trainer: Trainer, *, created_at: int) -> Event:
    """The 31990 beside a trainer's own: what it takes of kind 8000."""
    document = trainer.document()
    runs = [name for name, kind in RUNS.items() if kind in trainer.kinds]
    content = {"name": trainer.name, "runs": runs} | {name: document[name] for name in (*_PRICES, *_LIMITS)}
    said = [
        ["d", f"{trainer.name[:57]}.fedstr"],
        ["k", str(kinds.FEDSTR)],
        *(["t", topic] for topic in ("fedstr", *runs)),
    ]
    said.append(["i", trainer.hardware])
    return _event.sign(keys, kinds.AD, created_at=created_at, content=orjson.dumps(content).decode(), tags=said)


def earlier(event: Event, provider: str) -> str | None:
    """Of a result by `provider`, the request that it answers; None: it is no result of this layout. Raises BadTag."""
    if event.kind != kinds.FEDSTR_RESULT or event.pubkey != provider:
        return None
    return tags.hex32(event, "e")


def _said(event: Event, keys: Keys) -> Tags:
    """The tags, with those that are encrypted for us (NIP-90): `i`, `x`, `key` and `param` stand in one place only."""
    if not any(tag[0] == "encrypted" for tag in event.tags):
        return event.tags
    content = nip44.decrypt(event.content, nip44.conversation_key(keys, event.pubkey))
    try:
        said = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise BadEvent("content", "not JSON") from error
    if not isinstance(said, list) or not all(
        isinstance(tag, list) and tag and all(isinstance(part, str) for part in tag) for tag in said
    ):
        raise BadEvent("content", "not an array of tags")
    return tuple(tuple(tag) for tag in said)


def _repeated(event: Event) -> Tags:
    """The `i` tags that a result repeats beside the whole request; together they fit an event. Raises TooLarge."""
    inputs = tuple(tag for tag in event.tags if tag[0] == "i")
    if any(sum(len(part.encode()) for part in tag) > MAX_INPUT_BYTES for tag in inputs):
        raise TooLarge("i", f"more than {MAX_INPUT_BYTES} bytes in the plain")
    return inputs


def _marker(tag: tuple[str, ...]) -> str:
    """What an input is for; a job that does not say is one of the same data: so FEDSTR chains rounds."""
    return tag[4] if len(tag) > 4 else "data" if tag[2] == "job" else ""


def _param(said: Tags, name: str) -> str | None:
    values = [tag[2] for tag in said if tag[:2] == ("param", name) and len(tag) > 2]
    if len(values) > 1:
        raise BadTag("param", f"{name} stands {len(values)} times")
    return values[0] if values else None


def _number(said: Tags, name: str, default: int, most: int) -> int:
    value = _param(said, name)
    return default if value is None else tags.number(name, value, most=most)


def _recipe(said: Tags, run: str) -> Recipe:
    """The recipe, as its document or put together from plain parameters. Raises BadRecipe, BadTag, Unsupported."""
    text = _param(said, "recipe")
    if text is not None:
        return Recipe.parse(text)
    model = _param(said, "model")
    if model not in ("linear", "mlp"):
        raise Unsupported("model", "only linear and mlp have plain parameters: others are given as recipe")
    family: dict[str, Any] = {"name": model, "inputs": _needed(said, "inputs"), "classes": _needed(said, "classes")}
    if model == "mlp":
        sizes = (_param(said, "hidden") or "").split(",")
        family["hidden"] = [tags.number("hidden", size) for size in sizes]
    inner: dict[str, Any] = {"optimizer": _param(said, "optimizer") or "sgd"}
    for name in ("lr", "momentum", "weight_decay"):
        if (value := _param(said, name)) is not None:
            inner[name] = _real(name, value)
    document = {
        "v": 1,
        "name": "fedstr",
        "family": family,
        "loss": _param(said, "loss") or "cross_entropy",
        "data": {"layout": "arrays"},
        "inner": inner,
        "outer": _DILOCO if run == "diloco" else {},
        "steps": _needed(said, "steps"),
        "batch": _needed(said, "batch"),
        "rounds": _number(said, "rounds", 1, MAX_ROUNDS),
        "seed": _number(said, "seed", 0, 2**53 - 1),
    }
    return Recipe.from_document(document, context=READING_TOML)


def _needed(said: Tags, name: str) -> int:
    value = _param(said, name)
    if value is None:
        raise BadTag(name, "missing, and there is no recipe")
    return tags.number(name, value)


def _real(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise BadTag(name, f"{value[:20]!r} is not a number") from error
