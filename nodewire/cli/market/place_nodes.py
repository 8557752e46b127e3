"""The nodes of `nodewire place`: from a file, or as a market's snapshot has them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nodewire.errors import BadConfig, BadInput
from nodewire.plan.place.model import MOST_BYTES, MOST_NODES, MOST_RATE, UPLINK, Node, Pool, Table
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.protocol.encoding.validation_errors import in_words
from nodewire.protocol.market.ad_profile import UNPROFILED

if TYPE_CHECKING:
    from nodewire.protocol.market.coordinates import Coordinates
    from nodewire.protocol.market.snapshot import Snapshot
    from nodewire.protocol.model.manifest import Manifest

MAX_FILE_BYTES = 128 * 2**20
MOST_FASTER = 4.0
_MBIT = 125.0
"""Bytes a millisecond."""
Tables = dict[str, dict[str, Table]]
"""By task and node's kind."""
Holding = dict[str, tuple[str, ...]]
"""By node's name, the tasks that it holds now."""
_Ms = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
_Where = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
_At = tuple[_Where, _Where, _Ms]
_LEAST_GFLOPS = 1e-9
_Rate = Annotated[float, Field(ge=_LEAST_GFLOPS, le=1e9, allow_inf_nan=False)]


class _StrictModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Machine(_StrictModel):
    """A machine; `ms`: by task, measured milliseconds for so many items at once, which go before `gflops`.

    `holds`: the tasks that it serves now.
    """

    name: Annotated[str, Field(min_length=1, max_length=128)]
    memory: int | str
    gflops: _Rate = 1.0
    up_mbit: _Rate = UPLINK / _MBIT
    down_mbit: _Rate = UPLINK / _MBIT
    layouts: Annotated[list[Annotated[list[int | str], Field(max_length=64)]], Field(max_length=64)] = []
    at: _At = (0, 0, 0)
    holds: Annotated[list[str], Field(max_length=1_024)] = []
    ms: Annotated[dict[str, list[tuple[Annotated[int, Field(ge=1, le=2**20)], _Ms]]], Field(max_length=1_024)] = {}


class _Machines(_StrictModel):
    """What --nodes reads; `rtt_ms` has the customer's row and column last, and goes before `at` and `customer`."""

    nodes: Annotated[list[_Machine], Field(min_length=1, max_length=MOST_NODES)]
    rtt_ms: list[list[_Ms]] = []
    customer: _At = (0, 0, 0)


def from_file(path: Path) -> tuple[Pool, Tables, Holding]:
    """The pool, the times that were measured, and what each machine holds now.

    Raises BadConfig: the file is not what docs/how-to/place-tasks.md says.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadConfig(str(path), f"more than {MAX_FILE_BYTES // 2**20} MiB")
        said = _Machines.model_validate_json(path.read_bytes())
        nodes: list[Node] = []
        tables: Tables = {}
        for machine in said.nodes:
            nodes.append(
                Node(
                    machine.name,
                    parse_size(machine.memory),
                    machine.gflops,
                    kind=machine.name,
                    layouts=tuple(tuple(map(parse_size, layout)) for layout in machine.layouts),
                    up=machine.up_mbit * _MBIT,
                    down=machine.down_mbit * _MBIT,
                    at=machine.at,
                )
            )
            for task, table in machine.ms.items():
                tables.setdefault(task, {})[machine.name] = tuple(table)
        holding = {machine.name: tuple(machine.holds) for machine in said.nodes if machine.holds}
        return Pool(tuple(nodes), tuple(map(tuple, said.rtt_ms)), said.customer), tables, holding
    except OSError as error:
        raise BadConfig(str(path), f"cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadConfig(".".join(map(str, first["loc"])) or str(path), in_words(first)) from error
    except (ValueError, BadInput) as error:
        raise BadConfig(str(path), str(error)) from error


def of_snapshot(snapshot: Snapshot, manifest: Manifest, here: Coordinates | None) -> tuple[Pool, Tables, Holding]:
    """The market's nodes that hold something of the manifest, or say how fast they are and how much memory they have.

    Certified times count for the tasks that a node holds, and their rate for the others; of a decoder's tasks also what
    it published of many positions at once. Who holds nothing of it is not in what is held: its speed is what it
    published, which nobody certifies and which so counts for no more than MOST_FASTER times the fastest of the others.

    Raises BadInput: no such node.
    """
    publics = {node.pubkey for node in snapshot.nodes}
    ads, profiles = snapshot.ads(publics), snapshot.profiles(publics)
    digest, by_name = manifest.digest(), {task.name: task for task in manifest.tasks}
    nodes: dict[str, Node] = {}
    tables: Tables = {}
    holding: Holding = {}
    for node in snapshot.nodes:
        offers = [
            offer for held in node.held if held.manifest == digest for offer in held.tasks if offer.task in by_name
        ]
        ad, profile = ads.get(node.pubkey), profiles.get(node.pubkey, UNPROFILED)
        memory = max(ad.memory_bytes if ad else 0, sum(by_name[offer.task].memory_bytes for offer in offers))
        us = sum(offer.us_per_position for offer in offers)
        speed = sum(by_name[offer.task].flops for offer in offers) / us / 1_000 if us else profile.gflops
        if not memory or speed is None:
            continue
        name = f"{ad.name} {node.pubkey[:8]}" if ad else node.pubkey[:8]
        if name in nodes:  # keys that begin alike are quickly made
            name = f"{name} {node.pubkey}"
        x, y, height = (one / 1_000 for one in node.coordinates)
        speed = min(max(speed, _LEAST_GFLOPS), MOST_RATE)  # what strangers claim stops nobody's planning
        nodes[name] = Node(name, min(memory, MOST_BYTES), speed, kind=name, at=(x, y, height))
        if offers:
            holding[name] = tuple(offer.task for offer in offers)
        for offer in offers:
            table = [(1, offer.us_per_position / 1_000)]
            many = profile.tasks.get((digest, offer.task))
            if many is not None and many.positions > 1 and by_name[offer.task].engine.startswith("decoder."):
                table.append((many.positions, max(offer.us_per_position, many.us_together) / 1_000))
            tables.setdefault(offer.task, {})[name] = tuple(table)
    if not nodes:
        raise BadInput("--config", "nobody in this market holds anything of the model; --nodes describes machines")
    if most := MOST_FASTER * max((nodes[name].speed for name in holding), default=0.0):
        nodes |= {name: replace(one, speed=min(one.speed, most)) for name, one in nodes.items() if name not in holding}
    x, y, height = (one / 1_000 for one in here or (0, 0, 0))
    return Pool(tuple(nodes.values()), customer=(x, y, height)), tables, holding


def held_by(pool: Pool, manifest: Manifest, holding: Holding) -> tuple[tuple[int, ...], ...]:
    """By node, the numbers of the tasks that it holds. Raises BadInput: the model has no such task."""
    number = {task.name: index for index, task in enumerate(manifest.tasks)}
    for tasks in holding.values():
        if unknown := sorted(set(tasks) - number.keys()):
            raise BadInput("--nodes", f"a machine holds {unknown[0][:64]}, which is no task of this model")
    return tuple(tuple(sorted({number[task] for task in holding.get(node.name, ())})) for node in pool.nodes)
