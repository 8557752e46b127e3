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
from nodewire.protocol.market.splice_ad import Splice
from nodewire.protocol.market.static_swarm import RollCall, Swarm
from nodewire.protocol.model.manifest import Manifest
from nodewire.protocol.verification.sample import JobSamples
from nodewire.protocol.verification.statement import FrameStatement
from nodewire.protocol.verification.verdict import Verdict
from nodewire.training.fedstr.events import Output
from nodewire.training.protocol.audit import AuditAnswer
from nodewire.training.protocol.outer_step import Optimization, OuterDeliveryDetails, OuterTicket
from nodewire.training.protocol.outer_step import work_gflop as step_gflop
from nodewire.training.protocol.recipe import Recipe
from nodewire.training.protocol.result import DeliveryDetails, Progress
from nodewire.training.protocol.round import Round, RoundTicket
from nodewire.training.protocol.round import work_gflop as round_gflop
from nodewire.training.protocol.round_close import Close as RoundClose
from nodewire.training.protocol.round_close import CloseEvent, CountedResult, drawn, shown
from nodewire.training.protocol.trainer_ad import Trainer
from nodewire.training.protocol.transcript import Transcript

NUMBER = 6_000
SEED = 2_026
VECTORS = Path(__file__).parents[1] / "vectors"
_MARKET = (Ad, Beat, Body, Committee, Inventory, Manifest, Plan, Share, Splice)
_WORK = (Close, Closing, Commitment, Receipt, RollCall, JobSamples, FrameStatement, Swarm, Ticket, Verdict)
_TRAINING = (
    DeliveryDetails,
    Optimization,
    OuterDeliveryDetails,
    OuterTicket,
    Output,
    Progress,
    Recipe,
    Round,
    RoundTicket,
    AuditAnswer,
)
_TRAINING += (Trainer, Transcript)
TYPES: dict[str, type[Schema]] = {cls.__name__: cls for cls in (*_MARKET, *_WORK, *_TRAINING)}
TYPES["RoundClose"] = RoundClose
_ATOMS = (None, True, False, "", "x", "a b", "é" * 65, "\N{SNOWMAN}" * 128, "local", "ws://x", "https://x", "9.9.9.9:1")
_ATOMS += ("-", "a" * 64, "A" * 64, "0" * 64, "f" * 63, "02" + "0" * 64, "[::1]:65535", "x:65536", "x:0", "a" * 129)
_NUMBERS = (-1, 0, 1, 2, 7, 8, 64, 65, 256, 257, 4_096, 4_097, 10**6, 10**6 + 1, 2**40, 2**40 + 1, 2**53 - 1, 2**53)
_NUMBERS += (2_100_000_000_000_000_000, 2_100_000_000_000_000_001, 2**63, 2**64 - 1, 2**64, 10**30, 1.0, 0.5, -0.0)
_ADAMW = {"optimizer": "adamw", "lr": "1e-05"}
_TOPK = {"method": "topk", "block": 128, "fraction": "0.3", "bits": 2, "error_feedback": "0.9"}


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
    found |= _training(examples)
    assert set(found) == set(TYPES)
    return found


def _training(examples: dict[str, Any]) -> dict[str, list[Any]]:
    one, two, three, four = ("1" * 64, "2" * 64, "3" * 64, "4" * 64)
    recipe, ticket = examples["recipe"]["document"], examples["round_ticket"]
    round_, step = json.loads(examples["round"]["content"]), json.loads(examples["outer"]["content"])
    blob = {"sha256": one, "bytes": 7}
    shards = [{**round_["shards"][0], "index": n, "provider": key} for n, key in enumerate((one, two))]
    opens = [[one, two], [three, four]]
    outer_ticket = {"v": 1, "request": one, "salt": two, "recipe": recipe, "theta_key": three, "theta_sha256": four}
    outer_result = {"v": 1, "theta_key": one, "theta_sha256": two, "root": three, "momenta_key": four}
    states = [{"segment": n, "blob": blob, "key": two, "sha256": three} for n in (0, 3)]
    inputs = [
        {**step["inputs"][0], "index": n // 2, "weight": n + 1, "result": key}
        for n, key in enumerate((one, two, three))
    ]
    output = {"urls": ["https://b.example/" + one], "sha256": one, "bytes": 9, "key": two, "update_sha256": three}
    return {
        "DeliveryDetails": [examples["delivered"], {**examples["delivered"], "carried": one}],
        "Optimization": [step, {**step, "momenta": blob, "inputs": inputs}],
        "OuterDeliveryDetails": [{**outer_result, "momenta_sha256": one}],
        "OuterTicket": [{**outer_ticket, "momenta_key": None, "momenta_sha256": None, "opens": opens}],
        "Output": [{"v": 1, **output, "update_bytes": 8, "samples": 3, "loss": 2}],
        "Progress": [{"v": 1, "step": 3, "loss": 2_301_000}],
        "Recipe": _recipes(recipe),
        "Round": [round_, {**round_, "shards": shards, "start": blob, "previous": three, "inline": 45_056}],
        "RoundClose": [json.loads(examples["round_close"]["content"])],
        "RoundTicket": [ticket, {**ticket, "start_key": one, "carried": two}],
        "AuditAnswer": [{"v": 1, "shown": states}],
        "Trainer": [json.loads(examples["trainer"]["content"])],
        "Transcript": _transcripts(recipe, examples),
    }


def _recipes(base: dict[str, Any]) -> list[Any]:
    """A recipe of each family, with what has several forms in its forms."""
    muon = {**base["inner"], "optimizer": "muon", "rise": 4}
    return [base, *_recipes_of_scores(base, muon), *_recipes_of_texts(base, muon)]


def _recipes_of_scores(base: dict[str, Any], muon: dict[str, Any]) -> list[Any]:
    linear = {"name": "linear", "inputs": 64, "classes": 10}
    cnn = {
        "name": "cnn",
        "channels": 3,
        "height": 9,
        "width": 8,
        "filters": [4, 6],
        "kernel": 5,
        "pool": True,
        "classes": 2,
    }
    needed = {
        "v": 1,
        "name": "few",
        "family": linear,
        "loss": "squared_error",
        "data": {"layout": "arrays"},
        "inner": _ADAMW,
    }
    needed |= {"steps": 7, "batch": 5, "rounds": 3}
    return [
        needed,
        {**base, "family": linear, "compression": {"method": "int8"}, "precision": "bf16"},
        {**base, "family": cnn, "inner": muon, "compression": _TOPK, "audit": {"fraction": "0.0"}},
    ]


def _recipes_of_texts(base: dict[str, Any], muon: dict[str, Any]) -> list[Any]:
    decoder, bpe, encoder = _text_families()
    windows, texts = (
        {**base["data"], "layout": "bytes", "window": 64},
        {**base["data"], "layout": "texts", "window": 30},
    )
    stretched = {"factor": "8.0", "low_freq_factor": "1.0", "high_freq_factor": "4.0"}
    stretched |= {"original_max_position_embeddings": 8_192}
    pieces = {"method": "int4", "fragments": 2}
    lm = {"loss": "next_token", "data": windows}
    return [
        {**base, **lm, "family": {**decoder, "rope_scaling": stretched}, "compression": pieces, "inner": muon},
        {
            **base,
            **lm,
            "family": bpe,
            "data": texts,
            "outer": {"stored": "bf16", "shards": 4, "aggregate": "krum", "tolerated": 1},
        },
        {
            **base,
            **lm,
            "family": bpe,
            "data": {**windows, "layout": "tokens"},
            "adapter": {"rank": 4, "alpha": 8, "targets": ["q_proj", "embed_tokens"]},
            "inner": _ADAMW,
        },
        {
            **base,
            "family": encoder,
            "loss": "contrastive",
            "data": texts,
            "compression": {**_TOPK, "bits": 8},
            "inner": muon,
        },
    ]


def _text_families() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A decoder of bytes, one of a tokenizer's ids, and an encoder."""
    blob = {"sha256": "5" * 64, "bytes": 9}
    decoder = {"name": "decoder", "tokens": "byte", "width": 48, "inner": 100, "layers": 3, "heads": 4, "kv_heads": 2}
    decoder |= {"head_dim": 12, "positions": 64, "ends": [0, 255]}
    bpe = {**decoder, "tokens": "bpe", "vocabulary": 900, "tokenizer": blob, "start": blob, "tied": False}
    encoder = {"name": "encoder", "vocabulary": 500, "width": 36, "inner": 80, "layers": 2, "heads": 3, "positions": 40}
    encoder |= {"tokenizer": blob}
    return decoder, bpe, encoder


def _transcripts(recipe: dict[str, Any], examples: dict[str, Any]) -> list[Any]:
    one, two, three, four = ("1" * 64, "2" * 64, "3" * 64, "4" * 64)
    event = json.dumps(examples["round"])
    payment = {"request": one, "provider": two, "part": 1, "amount_msat": 750}
    weighed = {"request": one, "provider": two, "index": 0, "round": 0, "steps": 12, "weight": 384}
    made = {"round": 0, "before": three, "after": four, "loss": 2_000_000, "results": [weighed]}
    undone = {"failed": [{"request": one, "provider": two}], "rounds": [made]}
    keys = {"request": one, "provider": two, "theta_key": one, "theta_sha256": one, "shard_key": two}
    shown = {"v": 1, "shown": [{"segment": 1, "blob": {"sha256": one, "bytes": 2}, "key": two, "sha256": three}]}
    opened = {"results": {one: examples["delivered"]}, "answers": {two: shown}}
    least = {"v": 1, "customer": one, "job": two, "salt": three, "recipe": recipe, "shards": 2, "network": "simnet"}
    least |= {name: [event] for name in ("requests", "results", "closes", "asks", "answers", "receipts")}
    least |= {"payments": [payment], "rounds": [made], "weights": four, "sig": "5" * 128}
    bought = {"requests": [event], "results": [event], "payments": [payment]}
    opened |= {"shards": [{**keys, "shard_sha256": two}]}
    return [least, {**least, "undone": [undone], "bought": bought, "opened": opened}]


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


def _case(name: str, text: str) -> dict[str, Any]:
    case: dict[str, Any] = {"type": name, "text": text}
    try:
        read = TYPES[name].parse(text)
        packed = b"" if isinstance(read, Ticket) else read.pack()
    except NodewireError as error:
        return {**case, "error": error.code}
    if isinstance(read, Recipe):
        takes = (read.parameters(), read.trained(), read.stretches(), read.flops_per_round(), read.memory_bytes())
        case["takes"] = [str(number) for number in (*takes, read.upload_bytes(), *_audited(read))]
    return {**case, "is": read.seal() if isinstance(read, Ticket) else sha256(packed).hexdigest()}


def _audited(recipe: Recipe) -> tuple[Any, ...]:
    """What a round and an outer step of three inputs are in gflop, and what is drawn and asked for of two results."""
    steps = max(1, recipe.steps // 2)
    said: list[Any] = [round_gflop(recipe, steps), step_gflop(recipe, 3)]
    for doubted in (False, True):
        of = {"request": "1" * 64, "provider": "2" * 64, "index": 0, "result": "3" * 64, "commitment": recipe.digest()}
        counted = CountedResult(**of, doubted=doubted)
        close = RoundClose(job="4" * 64, round=0, nonce="5" * 64, results=(counted,))
        segments = drawn(CloseEvent("6" * 64, "7" * 64, close), counted, recipe, steps)
        said += [",".join(map(str, segments)), ",".join(map(str, shown(segments, recipe, steps)))]
    return tuple(said)


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
