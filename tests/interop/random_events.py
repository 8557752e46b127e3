"""Events of trainings with a random tag or field made another, and whether nodewire reads them, for other readers.

`python -m tests.interop.random_events FILE [NUMBER] [SEED]` writes one JSON document a line: what the event is, the
event, and the error's code where it is refused. Readers verify no signatures here: a changed event has none.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from nodewire.errors import BadEvent, NodewireError
from nodewire.nostr.event import Event
from nodewire.nostr.keys import Keys
from nodewire.protocol.model import inline_blob
from nodewire.training.fedstr import events
from nodewire.training.protocol import audit, outer_step, result, round_close, trainer_ad
from nodewire.training.protocol import round as rounds

NUMBER = 3_000
SEED = 2_026
VECTORS = Path(__file__).parents[1] / "vectors"


PROVIDER = Keys(b"\x02" * 32)
"""Whom requests in FEDSTR's layout are for: other readers have this key, too."""


def _round(event: Event) -> None:
    inline_blob.find_bytes(event, rounds.parse(event).round.theta)


def _read_fedstr(event: Event) -> None:
    if not events.is_ours(event, PROVIDER):
        raise BadEvent("event", "is not for this provider")
    events.parse(event, PROVIDER)


READERS: dict[str, Callable[[Event], Any]] = {
    "trainer": trainer_ad.parse,
    "round": _round,
    "outer": outer_step.parse,
    "delivery": result.parse,
    "outer_delivery": outer_step.parse_result,
    "round_close": round_close.parse,
    "snapshots_asked": audit.parse,
    "fedstr": _read_fedstr,
}
_MANY = ("e", "p", "t")
"""Of tags that stand once a reader takes the first, or refuses a second."""
_VALUES = (
    "",
    "0",
    "1",
    "01",
    "-1",
    "7",
    "384",
    "385",
    "8840",
    "8841",
    "8842",
    "9" * 20,
    "a" * 64,
    "A" * 64,
    "a" * 63,
    "blob",
    "job",
    "x",
)


def write(file: Path, number: int = NUMBER, seed: int = SEED) -> None:
    bases = _bases()
    with file.open("w") as out:
        for case in range(number):
            random = Random(seed * 1_000_000 + case)
            name = random.choice(sorted(bases))
            event = copy.deepcopy(random.choice(bases[name]))
            for _ in range(random.choice([0, 1, 1, 1, 2])):
                _change(random, event)
            out.write(json.dumps({"is": name, "event": event, "error": _error(name, event)}) + "\n")


def _error(name: str, event: dict[str, Any]) -> str | None:
    try:
        READERS[name](Event(**{**event, "tags": tuple(tuple(tag) for tag in event["tags"])}))
    except NodewireError as error:
        return error.code
    return None


def _bases() -> dict[str, list[dict[str, Any]]]:
    examples = json.loads((VECTORS / "examples1.json").read_text())
    found = {name: [examples[name]] for name in READERS if name in examples}
    round_ = found["round"][0]
    one, two = "1" * 64, "2" * 64
    content = json.loads(round_["content"])
    shards = [{**content["shards"][0], "index": n, "provider": key} for n, key in enumerate((one, two))]
    data = b"inline"
    theta = {"sha256": sha256(data).hexdigest(), "bytes": len(data)}
    more = {**content, "shards": shards, "previous": "3" * 64, "theta": theta}
    tags = [["i", theta["sha256"], "blob"], ["i", "3" * 64, "job", "wss://r.example"]]
    tags += [["bid", "2000"] if tag[0] == "bid" else tag for tag in round_["tags"] if tag[0] not in ("i", "p")]
    tags += [["p", one], ["p", two], ["inline", "aW5saW5l"], ["nonce", "5", "8"]]
    found["round"].append({**round_, "kind": 8_841, "content": json.dumps(more), "tags": tags})
    step = examples["outer"]
    said = {**json.loads(step["content"]), "momenta": {"sha256": two, "bytes": 5}}
    tags = [step["tags"][0], ["i", two, "blob"], *step["tags"][1:]]
    found["outer"].append({**step, "content": json.dumps(said), "tags": tags})
    made = examples["delivery"]
    tags = [*made["tags"][:4], ["i", two, "blob", "5"], *made["tags"][4:]]
    found["outer_delivery"] = [{**made, "kind": 6_842}, {**made, "kind": 6_842, "tags": tags}]
    found["fedstr"] = _fedstr(examples)
    close = examples["round_close"]
    said = json.loads(close["content"])
    said["results"] += [{**said["results"][0], "index": 1, "request": one, "provider": two}]
    tags = [["e", one], close["tags"][0], ["p", two], close["tags"][1], close["tags"][2]]
    found["round_close"].append({**close, "content": json.dumps(said), "tags": tags})
    return found


def _fedstr(examples: dict[str, Any]) -> list[dict[str, Any]]:
    url, text = ["i", "https://a.example/d", "url", "", "data"], ["i", "d2VpZ2h0cw==", "text", "", "state"]
    cited = [url, ["x", "1" * 64, "data", "1000"], ["key", "2" * 64, "data"], text, ["bid", "7"]]
    recipe = json.dumps(examples["recipe"]["document"])
    named = {"task": "train", "run": "fedavg", "recipe": recipe, "round": "3", "index": "1"}
    plain = {
        "task": "train",
        "run": "diloco",
        "model": "mlp",
        "inputs": "4",
        "hidden": "8,4",
        "classes": "2",
        "steps": "7",
    }
    plain |= {"batch": "4", "lr": "0.10", "momentum": "5e-1", "deadline": "60", "seed": "9"}
    return [
        {**examples["round"], "kind": 8_000, "content": "", "tags": [["p", PROVIDER.public], *cited, *_params(said)]}
        for said in (named, plain)
    ]


def _params(said: dict[str, str]) -> list[list[str]]:
    return [["param", name, value] for name, value in said.items()]


def _change(random: Random, event: dict[str, Any]) -> None:
    tags = event["tags"]
    tag = random.choice(tags) if tags else ["x"]
    match random.randrange(9):
        case 0:
            event["kind"] += random.choice([-1, 1, 2])
        case 1 if tags:
            tags.remove(tag)
        case 2 if tag[0] in _MANY:
            tags.insert(random.randrange(len(tags) + 1), copy.deepcopy(tag))
        case 3:
            random.shuffle(tags)
        case 4 if tag[0] != "snapshots":
            tag.append(random.choice(_VALUES))
        case 5 if len(tag) > 1 and tag[0] not in ("expiration", "inline"):
            tag.pop()
        case 6 if tag[0] in _MANY:
            tags.append([tag[0], random.choice(_VALUES)])
        case _ if len(tag) > 1 and tag[0] != "expiration":
            tag[random.randrange(1, len(tag))] = random.choice(_VALUES)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
