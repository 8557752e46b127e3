"""What `nodewire models` says of a task that providers have measured, and of a model that is called with tensors."""

from types import SimpleNamespace

from nodewire.cli.market.models import _called_with, _least, _measured, _show, _signature, _task_row
from nodewire.protocol.market.ad import TaskOffer
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor
from tests.protocol.documents import manifest

BLOB = BlobRef(sha256="ab" * 32, bytes=12)


def test_of_a_task_the_most_memory_and_the_least_time_are_shown():
    quick = {"peak_bytes": 31_000_000, "us": 900, "positions": 4, "us_together": 3_000}
    wide = {"peak_bytes": 33_500_000, "us": 1_800, "positions": 64, "us_together": 9_600}
    assert _measured([quick, wide]) == ("33.5 MB", "0.9 ms", "0.15 ms of 64")
    assert _measured([]) == ("-", "-", "-")


def test_a_model_that_is_called_with_tensors_says_which_it_takes_and_gives_and_of_what_size():
    def edge(source: str, target: str, name: str, shape: tuple[str | int, ...]) -> Edge:
        tensor = Tensor(name=name, dtype="float32", shape=shape)
        between = {"source": source, "target": target, "dims": {"batch": 1_024}, "bytes_per_position": 4}
        return Edge(name=f"{source}.to.{target}", tensors=(tensor,), **between)

    task = Task(name="graph.0", engine="graph", program=BLOB, weights=(BLOB,), memory_bytes=10, slots=1, flops=1)
    edges = (edge(CUSTOMER, "graph.0", "pixels", ("batch", 3, 8)), edge("graph.0", CUSTOMER, "scores", ("batch", 5)))
    said = _signature(Manifest(name="own", mode="run", tasks=(task,), edges=edges))
    assert said == {
        "takes": {"pixels": "float32 [batch, 3, 8]"},
        "gives": {"scores": "float32 [batch, 5]"},
        "most": {"batch": 1_024},
    }
    assert _called_with(said) == [
        r"takes pixels float32 \[batch, 3, 8]  [dim]batch up to 1,024[/]",
        r"gives scores float32 \[batch, 5]",
    ]


def test_a_model_that_generates_is_called_with_text():
    generates = manifest()
    assert generates.mode == "generate"
    assert _signature(generates) == {}
    assert _called_with({"name": "one", "tasks": []}) == []


def test_who_serves_several_models_is_said_once(capsys):
    node = {"public": "5a" * 32, "bond_msat": 7_000, "passed_msat": 3_000, "withheld": 1}
    task = {"name": "stage.0", "memory_bytes": 2_000_000, "providers": 1, "min_price_msat": 50, "measured": []}
    whose = {"pinned_as": ["mine"], "standing": "pinned", "resembles": "", "chunk": 64}
    whose["price"] = {"whole_msat": 50, "cached_msat": 25}
    for_all = {"mode": "generate", "tasks": [task], "nodes": [node], **whose}
    _show([{"name": name, "address": f"30{name}", **for_all} for name in ("one", "two")])
    said = capsys.readouterr().out
    assert said.count("pinned as mine") == 2
    assert said.count("served by 5a5a5a5a") == 2
    assert said.count("781.250 sat a million tokens at least, in or out; 390.625 sat of a prompt's beginning") == 2
    assert said.count("5a5a5a5a: bond 7.000 sat, 3.000 sat of samples passed, 1 withheld") == 1


def holder(public: str, ppm: int, **prices: int):
    offers = tuple(TaskOffer(task=task, price_msat=msat, us_per_position=1) for task, msat in prices.items())
    return (SimpleNamespace(pubkey=public), SimpleNamespace(tasks=offers)), SimpleNamespace(cached_ppm=ppm)


def test_a_models_price_is_the_cheapest_of_each_task_for_a_million_tokens_in_out_and_found():
    made = manifest()
    stage = next(task for task in made.tasks if task.engine == "decoder.stage")
    driver = next(task for task in made.tasks if task.engine != "decoder.stage")
    (ada, ada_ad), (bea, bea_ad) = holder("a", 500_000, s=10, d=3), holder("b", 100_000, s=12)
    ads = {"a": ada_ad, "b": bea_ad}
    rows = [
        _task_row(stage.model_copy(update={"name": "s"}), [ada, bea], [], ads),
        _task_row(driver.model_copy(update={"name": "d"}), [ada, bea], [], ads),
    ]
    assert [(row["providers"], row["min_price_msat"], row["min_cached_msat"]) for row in rows] == [
        (2, 10, 2),
        (1, 3, 3),
    ]
    price = _least(made, rows)
    assert (price["whole_msat"], price["cached_msat"]) == (13, 5)
    assert price["in_msat_per_million"] == price["out_msat_per_million"] == 13 * 10**6 // made.chunk
    assert price["cached_msat_per_million"] == 5 * 10**6 // made.chunk
    nobody = _task_row(driver, [], [], ads)
    assert _least(made, [rows[0], nobody])["in_msat_per_million"] is None
