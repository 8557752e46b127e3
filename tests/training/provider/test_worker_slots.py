"""For how many sessions a provider loads what it serves: those that it says, the manifest's, or as many as fit."""

from types import SimpleNamespace

import pytest

from nodewire.config import Serve
from nodewire.errors import NotAllowed
from nodewire.protocol.model.kv_pages import PAGE
from nodewire.protocol.model.manifest import BlobRef, Edge, Manifest, Task, Tensor
from nodewire.provider.tasks.loader import slots_of, specialize

BLOB = BlobRef(sha256="ab" * 32, bytes=1)
AT = f"38840:{'cd' * 32}:model"
CONTEXT = 8 * PAGE
WEIGHTS, PAGE_BYTES = 1_000_000, 1_000
SLOT = 8 * PAGE_BYTES


def manifest(name="model", mode="generate", slots=4) -> Manifest:
    """A driver without pages, and two stages that have them."""
    engine = "decoder.stage" if mode == "generate" else "graph"
    page = PAGE_BYTES if mode == "generate" else 0
    memory = WEIGHTS + slots * 8 * page
    tasks = [
        Task(
            name="driver",
            engine="decoder.driver" if mode == "generate" else "graph",
            program=BLOB,
            weights=(),
            memory_bytes=500,
            slots=slots,
            flops=1,
        )
    ]
    tasks += [
        Task(
            name=f"stage.{k}",
            engine=engine,
            program=BLOB,
            weights=(),
            memory_bytes=memory,
            slots=slots,
            flops=1,
            page_bytes=page,
        )
        for k in range(2)
    ]
    ids = Tensor(name="ids", dtype="int64", shape=(1,))
    edge = Edge(name="in", source="customer", target="driver", tensors=(ids,), bytes_per_position=8)
    return Manifest(
        name=name, mode=mode, context=CONTEXT if mode == "generate" else 0, tasks=tuple(tasks), edges=(edge,)
    )


def serve(*tasks, slots=None) -> Serve:
    return Serve(manifest=AT, tasks=tasks, price_msat=1, slots=slots)


def found(wants, manifests, memory_bytes=0):
    slots, needed = slots_of(wants, manifests, memory_bytes)
    return list(slots.values()), list(needed.values())


def test_without_a_word_it_is_what_the_manifest_says():
    one = manifest(slots=3)
    assert found([serve("stage.0")], [one]) == ([3], [one.task("stage.0").memory_bytes])


@pytest.mark.parametrize("slots", [1, 4, 9])
def test_a_number_counts_be_it_more_or_less_than_the_manifests(slots):
    assert found([serve("driver", "stage.0", slots=slots)], [manifest()]) == ([slots], [500 + WEIGHTS + slots * SLOT])


def test_what_has_no_pages_has_no_more_than_its_manifest_says():
    one = manifest(mode="run", slots=4)
    assert [found([serve("stage.0", slots=n)], [one])[0] for n in (2, 9, "most")] == [[2], [4], [4]]


def test_most_is_what_the_memory_has_room_for_beside_all_else():
    one, other = manifest(), manifest(name="other")
    wants = [serve("stage.0", "stage.1", slots="most"), serve("stage.0", slots=2)]
    fixed = 2 * WEIGHTS + WEIGHTS + 2 * SLOT
    for room, slots in ((0, 1), (2 * SLOT, 1), (4 * SLOT, 2), (21 * SLOT, 10), (10**12, 4_096)):
        (most, _), (needed, _) = found(wants, [one, other], fixed + room)
        assert most == slots
        assert needed == 2 * WEIGHTS + 2 * slots * SLOT
        assert needed + WEIGHTS + 2 * SLOT <= max(fixed + room, fixed + 2 * SLOT)


def test_two_of_most_share_and_of_one_manifest_the_fewest_count():
    one, other = manifest(), manifest(name="other")
    both = [serve("stage.0", slots="most"), serve("stage.0", slots="most")]
    assert found(both, [one, other], 2 * WEIGHTS + 12 * SLOT)[0] == [6, 6]
    twice = [serve("stage.0", slots="most"), serve("stage.1", slots=3), serve("driver", slots=2)]
    assert found(twice, [one, one, one], 10**12)[0] == [2]


def test_a_driver_alone_has_no_pages_that_most_could_count():
    assert found([serve("driver", slots="most")], [manifest(slots=4)], 10**12)[0] == [4]


def test_a_manifest_says_nothing_of_pages_where_there_are_none():
    assert all("page_bytes" not in task for task in manifest(mode="run").document()["tasks"])
    assert [task.get("page_bytes") for task in manifest().document()["tasks"]] == [None, PAGE_BYTES, PAGE_BYTES]


async def test_tasks_are_loaded_for_the_sessions_that_are_sold(tmp_path):
    """And what is sold is counted by them."""
    whole, loaded = manifest(), []

    class Record:
        async def manifest(self, address, digest=None):
            return whole

        async def fetch_blob(self, sha256, size):
            return tmp_path / sha256

    class Recorder:
        async def load(self, task, engine, program, weights, slots=0):
            loaded.append((task.split("/")[1], slots))
            return {"memory_bytes": 1, "load_ms": 1}

    kind = SimpleNamespace(worker_entry="any")
    want = serve("driver", "stage.1", slots=9).model_copy(update={"us_per_position": 5})
    (held,) = await specialize(Record(), (want,), {8843: kind}, lambda entry: Recorder(), {})
    assert loaded == [("driver", 9), ("stage.1", 9)]
    assert (held.slots, held.free, held.room.pages) == (9, 9, 9 * 8)
    with pytest.raises(NotAllowed, match=r"no task stage\.7; it has driver, stage\.0, stage\.1"):
        await specialize(Record(), (serve("stage.7"),), {8843: kind}, lambda entry: Recorder(), {})
