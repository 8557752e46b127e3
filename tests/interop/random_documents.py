"""Documents of the vectors with a random part made another, and what nodewire says of each, for other readers.

`python -m tests.interop.random_documents FILE [NUMBER] [SEED]` writes one JSON document a line: the type, the text, and
either the digest of its canonical bytes or the error's code. Tickets, which have no canonical bytes, have their seals.
"""

from __future__ import annotations

import copy
import json
import sys
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from nodewire.errors import NodewireError
from nodewire.protocol.committee.beacon import Share
from nodewire.protocol.committee.commitment import Commitment
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.committee.epoch_body import Body
from nodewire.protocol.committee.oracle_round import Inventory
from nodewire.protocol.encoding.schema import Schema
from nodewire.protocol.job.chunk_close import Close
from nodewire.protocol.job.plan import Plan
from nodewire.protocol.job.receipt import Closing, Receipt
from nodewire.protocol.job.request import Ticket
from nodewire.protocol.market.ad import Ad
from nodewire.protocol.market.heartbeat import Beat
from nodewire.protocol.market.relay_ad import Splice
from nodewire.protocol.market.static_swarm import RollCall, Swarm
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.verification.sample import JobSamples, Report
from nodewire.protocol.verification.statement import FrameStatement
from nodewire.protocol.verification.verdict import Verdict

NUMBER = 4_000
SEED = 2_026
VECTORS = Path(__file__).parents[1] / "vectors"
_MARKET = (Ad, Beat, Body, Committee, Inventory, Manifest, Plan, Share, Splice)
_WORK = (Close, Closing, Commitment, Receipt, Report, RollCall, JobSamples, FrameStatement, Swarm, Ticket, Verdict)
TYPES: dict[str, type[Schema]] = {cls.__name__: cls for cls in (*_MARKET, *_WORK)}
_ATOMS = (None, True, False, "", "x", "a b", "é" * 65, "\N{SNOWMAN}" * 128, "local", "ws://x", "https://x", "9.9.9.9:1")
_ATOMS += ("-", "a" * 64, "A" * 64, "0" * 64, "f" * 63, "02" + "0" * 64, "[::1]:65535", "x:65536", "x:0", "a" * 129)
_NUMBERS = (-1, 0, 1, 2, 7, 8, 64, 65, 256, 257, 4_096, 4_097, 10**6, 10**6 + 1, 2**40, 2**40 + 1, 2**53 - 1, 2**53)
_NUMBERS += (2_100_000_000_000_000_000, 2_100_000_000_000_000_001, 2**63, 2**64 - 1, 2**64, 10**30, 1.0, 0.5, -0.0)


def write(file: Path, number: int = NUMBER, seed: int = SEED) -> None:
    bases = _bases()
    with file.open("w") as out:
        for case in range(number):
            random = Random(seed * 1_000_000 + case)
            name = random.choice(sorted(bases))
            document = copy.deepcopy(random.choice(bases[name]))
            for _ in range(random.choice([0, 1, 1, 1, 2])):
                document = _changed(random, document)
            out.write(json.dumps(_case(name, json.dumps(document, ensure_ascii=random.random() < 0.5))) + "\n")


def _bases() -> dict[str, list[Any]]:
    documents = json.loads((VECTORS / "documents1.json").read_text())
    examples = json.loads((VECTORS / "examples1.json").read_text())
    found: dict[str, list[Any]] = {}
    for one in documents["documents"]:
        found.setdefault(one["type"], []).append(one["document"])
    found["Close"] = [documents["close"]["document"]]
    found["Commitment"] = [documents["commitment"]["document"]]
    found["Report"] = [json.loads(examples["report"]["content"])]
    found["RollCall"] = [examples["swarm"]["roll_call"]]
    found["JobSamples"] = [json.loads(examples["sampled"]["content"])]
    found["FrameStatement"] = [documents["sent"]["document"]]
    found["Share"] = [json.loads(documents["events"]["partial.1"]["content"])]
    found["Splice"] = [json.loads(examples["splice"]["content"])]
    found["Swarm"] = [examples["swarm"]["document"]]
    params = [{"temperature": value, "top_p": 1.0, "stop": ["é\n\x7f"]} for value in (1e-6, 1.5e-7, 1e16, 2.0, 5e-324)]
    ticket = examples["ticket"]["document"]
    found["Ticket"] = [ticket, *({**ticket, "params": one} for one in params)]
    full = {
        "lookahead": 8,
        "cached_ppm": 5,
        "bond": None,
        "wire": ["splice:" + "ab" * 32 + "@h.example:1", "1.2.3.4:5"],
    }
    found["Ad"].append({**found["Ad"][0], **full, "relays": ["wss://r.example"], "lnurl": "https://l.example/p"})
    observed = [{"node": "1" * 64, "rtt_us": None}, {"node": "2" * 64, "rtt_us": 5}]
    found["Beat"].append({**found["Beat"][0], "observed": observed})
    terms = {"ends": ["a" * 64], "lookahead": 2, "codecs": {"return": "int8"}}
    found["Plan"] += [{**one, "terms": {**one["terms"], **terms}, "busy": ["b" * 64]} for one in found["Plan"]]
    assert set(found) == set(TYPES)
    return found


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in _places(one, (*path, key)))]


def _changed(random: Random, document: Any) -> Any:
    *above, last = random.choice([place for place in _places(document) if place] or [("v",)])
    inside = document
    for key in above:
        inside = inside[key]
    old = inside[last]
    how = random.randrange(7)
    if how == 0:
        del inside[last]
    elif how == 1 and isinstance(inside, dict):
        inside[random.choice(["beside", "v", "sig", "name"])] = random.choice(_ATOMS)
    elif how == 1:
        inside.insert(last, copy.deepcopy(old))
    elif how == 2 and isinstance(inside, list):
        random.shuffle(inside)
    elif isinstance(old, bool) or old is None:
        inside[last] = random.choice([True, False, None, *_ATOMS])
    elif isinstance(old, int | float):
        inside[last] = random.choice([old + 1, old - 1, *_NUMBERS])
    elif isinstance(old, str) and how in (2, 3):
        inside[last] = random.choice([old[::-1], old.upper(), old + "0", old[:-1], old + "\n"])
    elif isinstance(old, list) and how in (2, 3):
        inside[last] = old * random.choice([0, 2, 100])
    else:
        inside[last] = random.choice([*_ATOMS, *_NUMBERS, [], {}, [old], {"x": old}])
    return document


def _case(name: str, text: str) -> dict[str, str]:
    case = {"type": name, "text": text}
    try:
        read = TYPES[name].parse(text)
    except NodewireError as error:
        return {**case, "error": error.code}
    return {**case, "is": read.seal() if isinstance(read, Ticket) else sha256(read.pack()).hexdigest()}


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
