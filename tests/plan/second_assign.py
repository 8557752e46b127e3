"""nips/08-assignment.md implemented a second time, from the page alone, without a line of nodewire.

It shows that the page is enough. Inputs and plans are JSON documents; names follow the page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from math import isqrt
from typing import Any

Doc = dict[str, Any]


class Refused(Exception):
    """No plan; the argument is the error's code."""


@dataclass(eq=False)
class Offer:
    node: Doc
    price: int
    us: int
    weight: int
    is_bonded: bool

    @property
    def pubkey(self) -> str:
        return str(self.node["pubkey"])


Offers = dict[str, list[Offer]]


def tagged(tag: str, *parts: bytes) -> int:
    return int.from_bytes(_tagged(tag, *parts), "big")


def _tagged(tag: str, *parts: bytes) -> bytes:
    prefix = hashlib.sha256(tag.encode()).digest()
    return hashlib.sha256(prefix + prefix + b"".join(parts)).digest()


def plan(case: Doc, digest: str) -> Doc:
    """What a plan says beside its inputs. Raises Refused."""
    manifest, terms = case["manifest"], case["terms"]
    names = [task["name"] for task in manifest["tasks"]]
    ends = _ends(manifest)
    local = {"provider": set(), "local": {names[0]}, "ends": ends}[terms["driver"]]
    offers = _offers(case, digest, [name for name in names if name not in local], ends)
    seed = _tagged(
        "nodewire/assign/2", *(bytes.fromhex(x) for x in (case["beacon"], digest, case["customer"])), bytes([case["k"]])
    )
    contested = [name for name, of in offers.items() if len({one.is_bonded for one in of}) == 2]
    q = tagged("nodewire/quota/2", seed)
    left_out = {*terms["excluded"], *(one["provider"] for one in case["busy"])}
    unit = case["committee"]["bond_unit_msat"]
    is_closed = any(one["pubkey"] in left_out and one["bond_msat"] < unit for one in case["nodes"])
    open_ = contested[q // 20 % len(contested)] if contested and q % 20 == 0 and not is_closed else None
    candidates: Offers = {}
    for i, name in enumerate(names):
        if name in offers:
            candidates[name] = _drawn(seed, i, offers[name], is_open=name == open_)
    edges = [one for one in manifest["edges"] if "customer" not in (one["source"], one["target"])]
    placed: dict[str, Offer] = {}

    def first(name: str, those: list[Offer]) -> Offer:
        costs = [one.us + sum(_links(edges, name, one, placed)) for one in those]
        return next(one for one, cost in zip(those, costs, strict=True) if 4 * cost <= 5 * min(costs))

    left = terms["max_chunk_msat"]
    for at, name in enumerate(offers):
        later = sum(min(one.price for one in candidates[x]) for x in list(offers)[at + 1 :])
        room = [one for one in candidates[name] if one.price + later <= left]
        if not room:
            raise Refused("over-budget")
        placed[name] = first(name, room)
        left -= placed[name].price
    total = sum(one.price for one in placed.values())
    if total > terms["max_total_msat"]:
        raise Refused("over-budget")
    us = sum(one.us for one in placed.values())
    turn = us + sum(sum(_links(edges, name, one, placed, ("source",))) for name, one in placed.items())
    next_ms = min(2000 + turn * 8 // 1000, 600000)
    return {
        "tasks": [
            {"task": name, "provider": "local", "price_msat": 0}
            if name in local
            else {"task": name, "provider": placed[name].pubkey, "price_msat": placed[name].price}
            for name in names
        ],
        "chunk_msat": total,
        "first_result_ms": min(5000 + next_ms + us * max(manifest["context"], 1) // 1000, 600000),
        "next_result_ms": next_ms,
    }


def _ends(manifest: Doc) -> set[str]:
    first = manifest["tasks"][0]["name"]
    shared = first if manifest["mode"] == "generate" else "customer"
    met = {x for e in manifest["edges"] for x in (e["source"], e["target"]) if shared in (e["source"], e["target"])}
    return {first} | (met - {"customer"})


def _offers(case: Doc, digest: str, names: list[str], ends: set[str]) -> Offers:
    terms, committee = case["terms"], case["committee"]
    busy = {one["provider"] for one in case["busy"]}
    offers: Offers = {name: [] for name in names}
    for node in sorted(case["nodes"], key=lambda one: one["pubkey"]):
        held = next((one for one in node["held"] if one["manifest"] == digest and one["free"] > 0), None)
        is_kept = node["pubkey"] not in busy | set(terms["excluded"])
        is_kept &= not terms["trusted"] or node["pubkey"] in terms["trusted"]
        is_kept &= not terms["regions"] or node["region"] in terms["regions"]
        for task in held["tasks"] if held and is_kept else ():
            price, us = task["price_msat"], task["us_per_position"]
            is_wanted = not terms.get("ends") or task["task"] not in ends or node["pubkey"] in terms["ends"]
            if task["task"] in offers and price <= terms["max_chunk_msat"] and is_wanted:
                weight = _weight(node, price, us, committee)
                bonded = node["bond_msat"] >= committee["bond_unit_msat"]
                offers[task["task"]].append(Offer(node, price, us, weight, bonded))
    if not offers or not all(offers.values()):
        raise Refused("no-provider")
    return offers


def _weight(node: Doc, price: int, us: int, committee: Doc) -> int:
    units = min(max(node["bond_msat"] // committee["bond_unit_msat"], 1), 1000)
    idle = 16 - node["load_ppm"] * 8 // 1000000
    known = 4 + min(node["epochs"], 4095).bit_length()
    passed, withheld = -(-node["passed"] // 4096), -(-node["withheld"] // 4096)
    gained = committee["verify_share_ppm"] * min((passed // max(price, 1)).bit_length(), 8)
    return units * max(1000000 // us, 1) * idle * known * ((10000000 + gained) >> min(withheld, 4))


def _drawn(seed: bytes, i: int, offers: list[Offer], *, is_open: bool) -> list[Offer]:
    bonded, unbonded = [one for one in offers if one.is_bonded], [one for one in offers if not one.is_bonded]

    def draw(pool: list[Offer], j: int) -> Iterable[Offer]:
        if not pool:
            return
        point = tagged("nodewire/draw/2", seed, i.to_bytes(4, "big"), j.to_bytes(4, "big")) % sum(
            o.weight for o in pool
        )
        for one in pool:
            point -= one.weight
            if point < 0:
                pool.remove(one)
                yield one
                return

    main = bonded or unbonded
    return [one for j in range(8) for one in draw(unbonded if is_open and j == 0 else main, j)]


def _links(
    edges: list[Doc], name: str, offer: Offer, placed: dict[str, Offer], sides: tuple[str, ...] = ("source", "target")
) -> Iterable[int]:
    """Of each edge between the task and one that is placed on another node."""
    for edge in edges:
        for side, other in (("source", "target"), ("target", "source")):
            far = placed.get(edge[other]) if side in sides and edge[side] == name else None
            if far is None or far.pubkey == offer.pubkey:
                continue
            (x, y, h), (x2, y2, h2) = offer.node["coordinates"], far.node["coordinates"]
            link = (isqrt((x - x2) ** 2 + (y - y2) ** 2) + h + h2) // 2
            is_known = offer.node["is_placed"] and far.node["is_placed"]
            yield (link if is_known else 50000) + edge["bytes_per_position"] * 1000 // 12500
