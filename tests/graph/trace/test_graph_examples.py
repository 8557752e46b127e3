"""Which sizes vary is read off examples: those that differ between them, and alike ones are one."""

from typing import NamedTuple

import pytest
import torch

from nodewire.errors import BadInput, Unsupported
from nodewire.graph.trace.examples import Leaf, named_tensors, signature


class Model(torch.nn.Module):
    def forward(self, ids, mask=None, *, options=None, scale=1.0):
        return ids


def ids(rows, length):
    return torch.zeros(rows, length, dtype=torch.int64)


def calls():
    for rows, length in ((2, 16), (3, 24), (5, 9)):
        yield (ids(rows, length),), {"mask": ids(rows, length), "options": {"image": torch.zeros(rows, 3, 8)}}


def test_sizes_that_differ_between_examples_vary_and_those_that_differ_alike_are_one():
    said = signature(Model(), calls())
    assert {i.name: i.shape for i in said.inputs} == {
        "ids": ("batch", "ids_1"),
        "mask": ("batch", "ids_1"),
        "options.image": ("batch", 3, 8),
    }
    assert said.dims == {"batch": 5, "ids_1": 24}
    assert said.least == 3 * 24


def test_one_example_fixes_its_sizes_unless_they_are_said_to_vary():
    assert signature(Model(), ids(2, 16)).dims == {}
    said = signature(Model(), {"ids": ids(2, 16)}, axes={"ids": ("rows", None)}, most={"rows": 64})
    assert (said.inputs[0].shape, said.dims) == (("rows", 16), {"rows": 64})


def test_a_call_is_made_again_of_tensors_by_name():
    class Noting(Model):
        def forward(self, *args, **kwargs):
            return args, kwargs

    said = signature(Model(), ((ids(1, 2),), {"options": {"pair": (ids(1, 1), None)}, "scale": 0.5}))
    assert isinstance(said.arguments["ids"], Leaf)
    tensors = {i.name: torch.ones(1) * k for k, i in enumerate(said.inputs)}
    args, kwargs = said.call(Noting(), tensors)
    assert args == (tensors["ids"],)
    assert kwargs == {"options": {"pair": (tensors["options.pair.0"], None)}, "scale": 0.5}


class Pair(NamedTuple):
    left: torch.Tensor
    right: object


def test_tensors_are_named_by_their_paths_and_what_is_none_is_left_out():
    one = torch.zeros(1)
    nested = {"Text": Pair(one, None), "states": (one, [one]), "loss": None, "n": 3}
    assert list(dict(named_tensors(nested))) == ["text.left", "states.0", "states.1.0"]
    assert list(dict(named_tensors(one))) == ["output"]
    with pytest.raises(Unsupported, match=r"^cache: a object is neither"):
        dict(named_tensors({"cache": object()}))


@pytest.mark.parametrize(
    ("examples", "error", "said"),
    [
        ([], BadInput, "examples: none"),
        ([{"ids": ids(1, 2)}, {"ids": ids(1, 2), "mask": ids(1, 2)}], BadInput, "mask: is a tensor in some"),
        ([((ids(1, 2),), {"scale": 1.0}), ((ids(1, 2),), {"scale": 2.0})], BadInput, "scale: differs between"),
        ([ids(1, 2), ids(1, 2)[None]], BadInput, "ids: is of another rank"),
        ({"words": 1}, BadInput, "examples: Model.forward: missing a required argument"),
        (torch.zeros(1, dtype=torch.float64), Unsupported, "ids: float64 is no dtype"),
        ([torch.zeros(k, k + 1, 2 * k, k * k) for k in (2, 3)], Unsupported, "examples: .* vary; at most 3"),
    ],
)
def test_examples_that_do_not_go_together_are_refused_by_name(examples, error, said):
    with pytest.raises(error, match=f"^{said}"):
        signature(Model(), examples)


def test_a_name_that_no_example_has_is_refused():
    with pytest.raises(BadInput, match=r"^axes: 'image' is no tensor of the examples: ids"):
        signature(Model(), ids(1, 2), axes={"image": ("batch",)})
    with pytest.raises(BadInput, match=r"^most: 'batch' is no size that varies"):
        signature(Model(), ids(1, 2), most={"batch": 4})
