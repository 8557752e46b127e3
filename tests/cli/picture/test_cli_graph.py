"""A drawn model: every task, tensor and provider is in it, nothing overlaps, and no stranger's word is markup."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from nodewire.cli.common.manifest_file import read_manifest
from nodewire.cli.picture.graph_svg import COLOURS, ProviderLabels, TaskHolders, draw, size
from nodewire.cli.picture.layers import GAP_X, MAX_LANES, layout
from nodewire.errors import BadInput, BadManifest, NotFound
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task, Tensor

SVG = "{http://www.w3.org/2000/svg}"
BLOB = BlobRef(sha256="ab" * 32, bytes=12_345_678)
HOSTILE = "</title><script>alert('1')</script>&amp;\x1b[31m\x00\ufffe\u202e]]>"


def task(name: str, **changes) -> Task:
    fields = {"name": name, "engine": "graph", "program": BLOB, "weights": (BLOB,), "memory_bytes": 10**7}
    return Task(**fields, slots=4, flops=12_300_000, **changes)


def edge(source: str, target: str, name: str = "", tensor: str = "x", *, back: bool = False) -> Edge:
    one = Tensor(name=tensor, dtype="float32", shape=("batch", 77, 512))
    name = name or f"{source}.to.{target}"
    return Edge(
        name=name, source=source, target=target, tensors=(one,), dims={"batch": 32}, bytes_per_position=4, back=back
    )


def clip() -> Manifest:
    edges = [edge(CUSTOMER, "vision", tensor="pixels"), edge(CUSTOMER, "text", tensor="ids")]
    edges += [edge("vision", "merge"), edge("text", "merge"), edge("merge", CUSTOMER, "logits", "logits")]
    return Manifest(name="clip", mode="run", tasks=tuple(map(task, ("vision", "text", "merge"))), edges=tuple(edges))


def experts(layers: int = 9, count: int = 6) -> Manifest:
    """Over eighty tasks: attention, router, experts, combine, with a skip around the experts and a mask for each."""
    tasks, edges, before = [task("embed")], [edge(CUSTOMER, "embed", tensor="ids")], "embed"
    for k in range(layers):
        attention, router, combine = f"attention.{k}", f"router.{k}", f"combine.{k}"
        many = [f"expert.{k}.{n}" for n in range(count)]
        tasks += map(task, (attention, router, *many, combine))
        edges += [edge(before, attention), edge(attention, router), edge(CUSTOMER, attention, f"mask.{k}", "mask")]
        edges += [e for one in many for e in (edge(router, one), edge(one, combine))]
        edges.append(edge(attention, combine))
        before = combine
    edges.append(edge(before, CUSTOMER, "out", "hidden"))
    return Manifest(name="experts", mode="run", tasks=tuple(tasks), edges=tuple(edges))


def ring() -> Manifest:
    edges = [edge(CUSTOMER, "driver", "prompt"), edge("driver", "stage"), edge("driver", CUSTOMER, "tokens")]
    edges.append(edge("stage", "driver", "return", back=True))
    return Manifest(name="ring", mode="generate", tasks=(task("driver"), task("stage")), edges=tuple(edges))


MODELS = {"three tasks": clip, "eighty-two tasks": experts, "a ring": ring}


def assigned(manifest: Manifest, providers: int = 11) -> ProviderLabels:
    publics = [f"{k:02x}" * 32 for k in range(1, providers + 1)]
    many = itertools.cycle(publics)
    tasks = {one.name: TaskHolders(next(many), (), 1_009) for one in manifest.tasks}
    return ProviderLabels("job 0123", tasks, {publics[0]: HOSTILE, publics[1]: "ada"})


def texts(svg: str) -> list[str]:
    return [text for node in ElementTree.fromstring(svg).iter() for text in [node.text or ""] if text.strip()]


@pytest.mark.parametrize("model", MODELS)
def test_everything_of_a_model_is_in_its_picture_and_the_same_model_gives_the_same(model):
    made = MODELS[model]()
    svg = draw(made, assigned(made))
    assert svg == draw(made, assigned(made))
    said = texts(svg)
    for one in made.tasks:
        assert one.name in said
    for one in made.edges:
        tensor = one.tensors[0].name
        assert any(f"{tensor}: float32 [batch, 77, 512], at most 5.05 MB" in text for text in said)
    assert sum("computed by" in text for text in said) == len(made.tasks)


@pytest.mark.parametrize("model", MODELS)
def test_boxes_do_not_overlap_and_lines_lead_downwards(model):
    made = MODELS[model]()
    names = [CUSTOMER, *(one.name for one in made.tasks)]
    edges = [(e.source, e.target) for e in made.edges if e.target != CUSTOMER and not e.back]
    laid = layout({name: (90.0 + 3 * len(name), 40.0) for name in names}, edges)
    for (_, a), (_, b) in itertools.combinations(laid.boxes.items(), 2):
        if a.layer == b.layer:
            assert abs(a.x - b.x) >= (a.width + b.width) / 2 + GAP_X - 1e-6
        else:
            assert (a.y < b.y) == (a.layer < b.layer) and abs(a.y - b.y) >= 40
        assert all(one.x - one.width / 2 >= 0 and one.x + one.width / 2 <= laid.width + 1e-6 for one in (a, b))
    for source, target in edges:
        heights = [laid.boxes[source].y, *(y for _, y in laid.ways[source, target]), laid.boxes[target].y]
        assert heights == sorted(set(heights))


def test_what_goes_to_a_few_tasks_is_one_box_with_its_type_and_what_goes_to_many_has_one_at_each():
    few = [edge(CUSTOMER, "vision", tensor="mask"), edge(CUSTOMER, "text", tensor="mask"), *clip().edges[2:]]
    svg = draw(clip().model_copy(update={"edges": tuple(few)}))
    assert svg.count('class="in" x=') == 1
    assert texts(svg).count("mask: float32 [batch, 77, 512]") == 1
    two = [edge(CUSTOMER, "vision", "one", "ids"), edge(CUSTOMER, "vision", "two", "mask"), *clip().edges[2:]]
    drawn = draw(clip().model_copy(update={"edges": tuple(two)}))
    assert drawn.count('class="in" x=') == 1
    assert {"ids: float32 [batch, 77, 512]", "mask: float32 [batch, 77, 512]"} <= set(texts(drawn))
    assert draw(experts(layers=9)).count('class="in" x=') == 1 + 9
    assert draw(experts(layers=4)).count('class="in" x=') == 1 + 1


def test_words_beside_lines_do_not_overlap_and_long_ones_that_find_no_room_stand_in_the_lines_title():
    many = [f"branch.{k}" for k in range(5)]
    edges = [edge(CUSTOMER, "driver", "texts", "texts")]
    edges += [
        e for one in many for e in (edge("driver", one, tensor=f"a_long_tensors_name_of_{one}"), edge(one, "join"))
    ]
    edges.append(edge("join", CUSTOMER, "out", "out"))
    wide = Manifest(name="wide", mode="run", tasks=tuple(map(task, ("driver", *many, "join"))), edges=tuple(edges))
    for made in (wide, experts()):
        svg = draw(made)
        found = [
            (float(one.get("x", "")), float(one.get("y", "")), len(one.text or ""))
            for one in ElementTree.fromstring(svg).iter(f"{SVG}text")
            if one.get("class") == "small over"
        ]
        assert found
        for (ax, ay, a), (bx, by, b) in itertools.combinations(found, 2):
            assert abs(ay - by) >= 12 or abs(ax - bx) >= 5.5 * (a + b) / 2
        for one in made.edges:
            assert f"{one.tensors[0].name}: float32" in svg


def test_a_graph_that_can_be_drawn_without_crossings_is():
    names = ["a", "b", "c", "d", "e", "f"]
    # Crossed as they come: a to f, b to e, c to d.
    laid = layout(dict.fromkeys(names, (60.0, 30.0)), [("a", "f"), ("b", "e"), ("c", "d")])
    assert laid.crossings == 0
    assert layout({}, []).boxes == {}
    both = layout(dict.fromkeys("abcd", (60.0, 30.0)), [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")])
    assert both.crossings == 1  # none has fewer


def test_what_repeats_one_sidedly_does_not_drift_away():
    made = experts(20)
    widest = draw(experts(1)).split('width="')[1].split('"')[0]
    tall = draw(made).split('width="')[1].split('"')[0]
    assert float(tall) < 1.5 * float(widest)


def test_strangers_words_are_words():
    made = clip().model_copy(update={"tasks": tuple(task(one.name, limit=HOSTILE[:128]) for one in clip().tasks)})
    svg = draw(made, assigned(made))
    tags = {node.tag for node in ElementTree.fromstring(svg).iter()}
    known = ("svg", "title", "desc", "style", "defs", "marker", "path", "rect", "text", "g", "line")
    assert tags <= {SVG + name for name in known}
    assert not set(svg) & {"\x00", "\x1b", "\ufffe", "\u202e"}
    assert any("<script>alert" in text for text in texts(svg))  # shown, and not obeyed


def test_a_provider_is_known_by_colour_by_name_and_by_its_stripe():
    made = experts()
    svg = draw(made, assigned(made))
    said = texts(svg)
    for number in range(1, 12):
        assert any(f"{number:02x}" * 4 in text and "task" in text for text in said)
    assert all(colour in svg for colour in COLOURS)
    assert 'stroke-dasharray="6 4"' in svg  # the ninth has the first's colour
    assert any(text.startswith("ada 02020202: ") for text in said)


def test_the_markets_holders_are_squares_and_what_nobody_serves_is_told():
    made = clip()
    holders = {"vision": TaskHolders(holders=tuple(f"{k:02x}" * 32 for k in range(1, 12)))}
    said = texts(draw(made, ProviderLabels("the market in epoch 7", holders)))
    assert said.count("nobody serves it") == 2
    assert "+3" in said
    assert "the market in epoch 7" in said


def test_sizes_read_as_people_write_them():
    assert [size(n) for n in (0, 999, 1_000, 12_345_678, 140_000_000_000, 5_000_000_000_000)] == [
        "0 B", "999 B", "1 kB", "12.3 MB", "140 GB", "5,000 GB",
    ]  # fmt: skip


def test_a_manifest_is_found_in_its_file_and_among_blobs(tmp_path):
    made = clip()
    (tmp_path / "a.json").write_text(made.to_json())
    (tmp_path / "a.msgpack").write_bytes(made.pack())
    assert read_manifest(tmp_path / "a.json") == read_manifest(tmp_path / "a.msgpack") == made
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    with pytest.raises(NotFound, match=r"holds no manifest\.json"):
        read_manifest(blobs)
    (blobs / ("cd" * 32)).write_bytes(b"weights")
    (blobs / ("ef" * 32)).write_bytes(made.pack())
    assert read_manifest(blobs) == made
    (blobs / "manifest.json").write_text(experts().to_json())
    assert read_manifest(blobs).name == "experts"
    (tmp_path / "bad.json").write_text('{"v": 1}')
    with pytest.raises(BadManifest):
        read_manifest(tmp_path / "bad.json")
    (tmp_path / "worse").write_bytes(b"\x93\x01")
    with pytest.raises(BadInput):
        read_manifest(tmp_path / "worse")


def test_the_command_draws_a_file_with_a_purchases_report(tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "nodewire.cli", "graph", *arguments, "--json"]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    (tmp_path / "clip.json").write_text(clip().to_json())
    tasks = [{"task": name, "provider": "01" * 32} for name in ("vision", "text", "merge")]
    (tmp_path / "report.json").write_text(json.dumps({"tasks": tasks, "names": {"01" * 32: "ada"}, "request": "9"}))
    done = run("clip.json", "--job", "report.json", "-o", "out.svg")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["providers"] == ["01" * 32]
    assert "ada 01010101: 3 tasks" in texts((tmp_path / "out.svg").read_text())
    assert run("clip.json").returncode == 0 and (tmp_path / "clip.svg").exists()
    tasks[0]["task"] = "other"
    (tmp_path / "report.json").write_text(json.dumps({"tasks": tasks}))
    for arguments, field in (
        (("clip.json", "--job", "report.json"), "--job"),
        (("clip.json", "--live"), "--config"),
        (("clip.json", "-o", "nowhere/x.svg"), "--out"),
        (("clipp.json",), "MANIFEST"),
        (("clip.json", "--job", "0" * 64, "--live"), "--live"),
    ):
        refused = run(*arguments)
        assert (refused.returncode, json.loads(refused.stdout)["error"]["field"]) == (1, field)


def test_edges_over_hundreds_of_layers_do_not_make_a_picture_of_millions_of_points():
    names = [f"t{k}" for k in range(1_024)]
    chain = list(itertools.pairwise(names))
    long = [(names[k % 40], names[-1 - k // 40]) for k in range(4_000)]
    made = layout(dict.fromkeys(names, (80.0, 30.0)), [*chain, *long])
    assert made.ways.keys() == {*chain, *long}
    assert sum(map(len, made.ways.values())) <= MAX_LANES
    assert len({box.layer for box in made.boxes.values()}) == len(names)
