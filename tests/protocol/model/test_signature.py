"""The named tensors that a call of a model takes and gives."""

from __future__ import annotations

import pytest

from nodewire.errors import BadFrame, BadInput, BadManifest
from nodewire.protocol.model.manifest import CUSTOMER, Edge, Manifest, Tensor
from nodewire.protocol.model.signature import Signature, described
from nodewire.protocol.tensors.frame import Array, Frame
from tests.protocol.documents import manifest

IMAGE = Tensor(name="image", dtype="float32", shape=("batch", 2))
MASK = Tensor(name="mask", dtype="bool", shape=("batch",))
SCORE = Tensor(name="score", dtype="float32", shape=("batch", "classes"))
IS_SURE = Tensor(name="is_sure", dtype="bool", shape=("batch",))


def edge(name: str, source: str, target: str, *tensors: Tensor, **dims: int) -> Edge:
    return Edge(name=name, source=source, target=target, tensors=tensors, dims=dims, bytes_per_position=8)


def model(*edges: Edge) -> Manifest:
    """A manifest that runs three tasks; it is only read for what its customer gives and gets."""
    return manifest().model_copy(update={"mode": "run", "edges": edges})


def signature() -> Signature:
    """Two tasks take the image, one of them at most 4 rows of it; one edge leads back."""
    return Signature.from_manifest(
        model(
            edge("left", CUSTOMER, "driver", IMAGE, batch=8),
            edge("right", CUSTOMER, "stage.0", IMAGE, MASK, batch=4),
            edge("between", "stage.0", "stage.1", SCORE, batch=8),
            edge("out", "stage.1", CUSTOMER, SCORE, IS_SURE, batch=8, classes=3),
        )
    )


def image(rows: int = 2, columns: int = 2, dtype: str = "float32") -> Array:
    width = 4 if dtype == "float32" else 1
    return Array(dtype, (rows, columns), bytes(rows * columns * width))


def mask(*flags: int) -> Array:
    return Array("bool", (len(flags),), bytes(flags))


def scores(rows: int, classes: int) -> Array:
    return Array("float32", (rows, classes), bytes(4 * rows * classes))


def test_a_dim_is_as_large_as_the_least_edge_allows():
    found = signature()
    assert list(found.inputs) == ["image", "mask"]
    assert list(found.outputs) == ["score", "is_sure"]
    assert found.dims == {"batch": 4}
    assert [one.name for one in found.sends] == ["left", "right"]
    assert described(found.inputs["image"]) == "float32 [batch, 2]"


@pytest.mark.parametrize(
    ("edges", "reason"),
    [
        ([edge("in", CUSTOMER, "driver", IMAGE)], "takes no inputs, or puts out nothing"),
        ([edge("out", "driver", CUSTOMER, SCORE)], "takes no inputs, or puts out nothing"),
        (
            [edge("in", CUSTOMER, "driver", IMAGE), *(edge(f"out.{i}", "driver", CUSTOMER, SCORE) for i in (0, 1))],
            "two tensors of one name",
        ),
        (
            [
                edge("in", CUSTOMER, "driver", IMAGE),
                edge("also", CUSTOMER, "stage.0", IMAGE.model_copy(update={"dtype": "int64"})),
                edge("out", "driver", CUSTOMER, SCORE),
            ],
            r"is float32 \[batch, 2\], and int64 \[batch, 2\] on also",
        ),
    ],
)
def test_a_model_without_clear_inputs_and_outputs_has_none(edges, reason):
    with pytest.raises(BadManifest, match=reason):
        Signature.from_manifest(model(*edges))


def test_a_call_has_every_input_and_no_other():
    found = signature()
    made = found.arrays({"image": 3, "mask": 4}, lambda tensor, given: Array(tensor.dtype, (given,), b""))
    assert {name: one.shape for name, one in made.items()} == {"image": (3,), "mask": (4,)}
    with pytest.raises(BadInput, match=r"mask: is missing; the model takes bool \[batch\]"):
        found.arrays({"image": 3}, lambda tensor, given: image())
    with pytest.raises(BadInput, match="extra: no input of the model, which takes image, mask"):
        found.arrays({"image": 3, "mask": 4, "extra": 5}, lambda tensor, given: image())


def test_an_input_stands_on_each_edge_that_has_it():
    found, call = signature(), {"image": image(), "mask": mask(0, 1)}
    assert found.check(call) == {"batch": 2}
    assert found.largest_bytes(call) == 16 + 2
    frames = found.frames([call, call])
    assert [(one.edge, one.seq, one.meta["end"]) for one in frames] == [
        ("left", 0, False),
        ("right", 0, False),
        ("left", 1, True),
        ("right", 1, True),
    ]
    assert frames[1].tensors == (call["image"], call["mask"])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"image": image(dtype="int8"), "mask": mask(0, 1)}, r"image: int8, the model has float32 \[batch, 2\]"),
        ({"image": image(columns=3), "mask": mask(0, 1)}, r"image: of shape \[2, 3\]"),
        ({"image": Array("float32", (2,), bytes(8)), "mask": mask(0, 1)}, r"image: of shape \[2\]"),
        ({"image": image(3), "mask": mask(0, 1)}, "mask: has 2 as batch, another tensor has 3"),
    ],
)
def test_a_call_of_another_type_is_told(call, reason):
    with pytest.raises(BadInput, match=reason):
        signature().check(call)


def test_outputs_are_named():
    found = signature()
    outputs = found.outputs_of(Frame("out", 0, (scores(2, 3), mask(1, 0))), {"batch": 2})
    assert outputs == {"score": scores(2, 3), "is_sure": mask(1, 0)}


@pytest.mark.parametrize(
    ("name", "tensors", "reason"),
    [
        ("left", (scores(2, 3), mask(1, 0)), "left: 2 tensors, which is not what the manifest says"),
        ("out", (scores(2, 3),), "out: 1 tensors"),
        ("out", (scores(1, 3), mask(1)), "score: has 1 as batch, another tensor has 2"),
        ("out", (scores(2, 4), mask(1, 0)), "score: classes is 4, at most 3"),
        ("out", (scores(2, 3), mask(1, 2)), "is_sure: has bools that are neither 0 nor 1"),
    ],
)
def test_an_output_that_was_not_asked_for_is_no_output(name, tensors, reason):
    with pytest.raises(BadFrame, match=reason):
        signature().outputs_of(Frame(name, 0, tensors), {"batch": 2})
