"""nips/07-snapshots.md implemented a second time, from the page alone, without a line of nodewire.

It shows that the page is enough. Events, committees and snapshots are JSON documents; names follow the page.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from math import isqrt
from typing import Any

Doc = dict[str, Any]
Speeds = dict[tuple[str, str], int]
MAX_NODES, MAX_ABSENT, MAX_JUDGED, MAX_SLOTS, ROOM_BYTES = 4096, 4096, 1024, 4096, 24 * 2**20


def snapshot(
    committee: Doc,
    digest: str,
    e: int,
    beats: Sequence[Doc],
    others: Sequence[Doc],
    judged: Sequence[Doc],
    previous: Doc | None,
) -> Doc:
    """`nodes`, `absent` and `judged` of epoch `e`. `others` are ads and bond statements."""
    if previous is not None and previous["epoch"] < e - 16:
        previous = None
    e1 = previous["epoch"] if previous else e - 1
    before = {node["pubkey"]: node for node in previous["nodes"]} if previous else {}
    live = _live(committee, digest, e, beats, {event["id"]: event for event in others})
    due = _due(judged, e1 - 12, e - 12)
    points = _points(previous, e - e1, due)
    prior = _priors(committee, live)
    nodes = []
    for pubkey, one in sorted(live.items()):
        seen = [each for each in _seen(committee, e, pubkey, live, before) if each["observer"] in live]
        missed = sum(each["rtt_us"] is None for each in seen)
        agreed = sum(_agrees(one, live[each["observer"]], each["rtt_us"]) for each in seen)
        most = 0 if missed >= 3 and 2 * missed > len(seen) else one["slots"]
        passed, withheld = points.get(pubkey, (0, 0))
        nodes.append(
            {
                "pubkey": pubkey,
                "beat": one["id"],
                "ad": one["says"]["ad"],
                "held": [_held(offer, one["says"]["free"], most, prior, committee) for offer in one["ad"]["manifests"]],
                "bond_msat": one["bond_msat"],
                "region": one["ad"]["region"],
                "load_ppm": one["says"]["load_ppm"],
                "coordinates": one["says"]["coordinates"],
                "epochs": 1 + (before[pubkey]["epochs"] if pubkey in before else 0),
                "passed": passed,
                "withheld": withheld,
                "seen": seen,
                "is_placed": agreed >= 3 and 2 * agreed > len(seen),
            }
        )
    away = [(-w, -p, pubkey) for pubkey, (p, w) in points.items() if pubkey not in live and (p or w)]
    absent = [{"pubkey": pubkey, "passed": -p, "withheld": -w} for w, p, pubkey in sorted(away)[:MAX_ABSENT]]
    return {"nodes": nodes, "absent": sorted(absent, key=lambda one: one["pubkey"]), "judged": due}


def _live(committee: Doc, digest: str, e: int, beats: Sequence[Doc], known: dict[str, Doc]) -> dict[str, Doc]:
    """Rules 1 to 3, 5 and 8."""
    lasting = -(-3 * committee["beat_ms"] // committee["epoch_ms"])
    best: dict[str, tuple[tuple[int, int, str], Doc, Doc]] = {}
    for event in beats:
        says = json.loads(event["content"])
        if says["committee"] == digest and e - lasting <= says["epoch"] <= e:
            rank = (-says["epoch"], -event["created_at"], event["id"])
            if event["pubkey"] not in best or rank < best[event["pubkey"]][0]:
                best[event["pubkey"]] = rank, event, says
    found = []
    for pubkey, (_, event, says) in best.items():
        ad_event = known.get(says["ad"])
        if ad_event is None or ad_event["pubkey"] != pubkey:
            continue
        ad = json.loads(ad_event["content"])
        bond = known.get(ad["bond"])
        bond_msat, slots = _bond(committee, e, pubkey, ad, bond)
        nbytes = sum(len(json.dumps(one, separators=(",", ":"))) for one in (event, ad_event, bond) if one)
        said = {"id": event["id"], "says": says, "ad": ad, "bond_msat": bond_msat, "slots": slots, "nbytes": nbytes}
        found.append((-bond_msat, says["ad"], pubkey, said))
    taken, room = {}, ROOM_BYTES
    for _, _, pubkey, said in sorted(found, key=lambda one: one[:2])[:MAX_NODES]:
        room -= said["nbytes"]
        if room < 0:
            break
        taken[pubkey] = said
    return taken


def _bond(committee: Doc, e: int, pubkey: str, ad: Doc, event: Doc | None) -> tuple[int, int]:
    """What counts of a bond, and for how many slots at most."""
    tags = {tag[0]: tag[1] for tag in event["tags"]} if event else {}
    close_ms = committee["genesis_s"] * 1000 + (e + 4) * committee["epoch_ms"]
    if event is None or event["pubkey"] not in committee["bond_holders"] or tags["p"] != pubkey:
        return 0, MAX_SLOTS
    if int(tags["expiration"]) * 1000 < close_ms:
        return 0, MAX_SLOTS
    bond_msat = min(ad["bond_msat"], int(tags["amount"]))
    price = committee.get("stake", 100) * sum(task["price_msat"] for m in ad["manifests"] for task in m["tasks"])
    if bond_msat < committee["bond_unit_msat"] or not price:
        return bond_msat, MAX_SLOTS
    return (bond_msat, bond_msat // price) if bond_msat >= price else (0, MAX_SLOTS)


def _priors(committee: Doc, live: dict[str, Doc]) -> Speeds:
    claims: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for one in live.values():
        units = min(one["bond_msat"] // committee["bond_unit_msat"], 1000)
        for offer in one["ad"]["manifests"]:
            for task in offer["tasks"]:
                claims.setdefault((offer["manifest"], task["task"]), []).append((task["us_per_position"], units))
    found = {}
    for key, those in claims.items():
        those = sorted(one for one in those if one[1]) or sorted((us, 1) for us, _ in those)
        total, running = sum(units for _, units in those), 0
        for us, units in those:
            running += units
            if 2 * running >= total:
                found[key] = us
                break
    return found


def _held(offer: Doc, free: dict[str, int], most: int, prior: Speeds, committee: Doc) -> Doc:
    manifest, least = offer["manifest"], committee["min_us_per_position"]
    tasks = [
        {**task, "us_per_position": max(task["us_per_position"], prior[manifest, task["task"]], least)}
        for task in offer["tasks"]
    ]
    return {"manifest": manifest, "free": min(free.get(manifest, 0), offer["slots"], most), "tasks": tasks}


def _due(judged: Sequence[Doc], above: int, last: int) -> list[Doc]:
    order = ("epoch", "sample", "provider", "outcome", "price_msat")
    found: dict[str, Doc] = {}
    for one in sorted(judged, key=lambda one: [one[name] for name in order]):
        if above < one["epoch"] <= last:
            found.setdefault(one["sample"], one)
    return list(found.values())[-MAX_JUDGED:]


def _points(previous: Doc | None, epochs: int, due: Sequence[Doc]) -> dict[str, tuple[int, int]]:
    passed: dict[str, int] = {}
    withheld: dict[str, int] = {}
    for old in (*previous["nodes"], *previous.get("absent", ())) if previous else ():
        for name, points in (("passed", passed), ("withheld", withheld)):
            left = old.get(name, 0)
            for _ in range(epochs):
                left -= -(-left // 4096)
            points[old["pubkey"]] = left
    for one in due:
        key = one["provider"]
        if one["outcome"] == "withheld":
            withheld[key] = withheld.get(key, 0) + 4096
        elif one["outcome"] == "pass":
            passed[key] = min(passed.get(key, 0) + 4096 * one["price_msat"], 2**53 - 1)
    for one in due:
        if one["outcome"] == "unsure":
            passed[one["provider"]] = passed.get(one["provider"], 0) // 8
    return {key: (passed.get(key, 0), withheld.get(key, 0)) for key in passed | withheld}


def _seen(committee: Doc, e: int, pubkey: str, live: dict[str, Doc], before: dict[str, Doc]) -> list[Doc]:
    """Rule 9, with observers that are not live still among them."""
    units = {key: node["bond_msat"] // committee["bond_unit_msat"] for key, node in before.items()}
    total = sum(units.values())
    newest = {one["observer"]: one for one in before.get(pubkey, {}).get("seen", ())}
    for observer, one in live.items():
        for said in one["says"].get("observed", ()):
            if said["node"] == pubkey and units.get(observer):
                lot = _lot(one["says"]["last"], observer, pubkey)
                is_newer = observer not in newest or newest[observer]["epoch"] <= one["says"]["epoch"]
                if lot * total < 4 * units[observer] * 2**64 and is_newer:
                    newest[observer] = {
                        "observer": observer,
                        "epoch": one["says"]["epoch"],
                        "rtt_us": said["rtt_us"],
                    }
    counting = [one for one in newest.values() if one["epoch"] >= e - 4]
    return sorted(counting, key=lambda one: (-one["epoch"], one["observer"]))[:8]


def _lot(body: str, observer: str, node: str) -> int:
    tag = hashlib.sha256(b"nodewire/observer/1").digest()
    return int.from_bytes(hashlib.sha256(tag + tag + bytes.fromhex(body + observer + node)).digest()[:8], "big")


def _agrees(node: Doc, observer: Doc, rtt_us: int | None) -> bool:
    (x, y, h), (x2, y2, h2) = node["says"]["coordinates"], observer["says"]["coordinates"]
    r = isqrt((x - x2) ** 2 + (y - y2) ** 2) + h + h2
    return rtt_us is not None and abs(rtt_us - r) <= max(r // 4, 5000)
