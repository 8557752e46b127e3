"""The longest path from each task to a job's end."""

from nodewire.plan.path import remaining_us
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task

BLOB = BlobRef(sha256="ab" * 32, bytes=1)


def manifest(*ways: tuple[str, str], back: tuple[str, str] | None = None) -> Manifest:
    names = list(dict.fromkeys(name for way in ways for name in way if name != CUSTOMER))
    tasks = tuple(
        Task(name=n, engine="graph", program=BLOB, weights=(), memory_bytes=1, slots=1, flops=1) for n in names
    )
    edges = [
        Edge(name=f"{a}.{b}", source=a, target=b, tensors=(), bytes_per_position=1, back=(a, b) == back)
        for a, b in (*ways, *((back,) if back else ()))
    ]
    return Manifest(name="m", mode="run", tasks=tasks, edges=tuple(edges))


def test_a_task_is_as_far_from_the_end_as_the_longest_of_its_ways():
    made = manifest(
        (CUSTOMER, "fork"), ("fork", "long"), ("fork", "short"), ("long", "join"), ("short", "join"),
        ("join", CUSTOMER),
    )  # fmt: skip
    took = {"fork": 1, "long": 100, "short": 10, "join": 5}
    found = remaining_us(made, took, lambda edge: 1_000 if edge.source == "short" else 0)
    assert found == {"join": 5, "long": 105, "short": 1_015, "fork": 1_016}


def test_an_edge_that_closes_a_ring_leads_nowhere_and_what_is_not_known_takes_no_time():
    made = manifest((CUSTOMER, "driver"), ("driver", "stage"), ("driver", CUSTOMER), back=("stage", "driver"))
    assert remaining_us(made, {"stage": 7}, lambda edge: 2) == {"stage": 7, "driver": 9}
