"""What a trace does not show is found by running the tasks beside the model, on calls that it was not traced with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import nodewire
from nodewire.errors import BadTask
from nodewire.graph.registration import parity
from nodewire.graph.registration.streamed_weights import StreamedWeights
from nodewire.graph.trace.examples import signature

ROWS = (torch.zeros(2, 8), torch.zeros(5, 8))


def model(forward):
    made = type("Model", (nn.Module,), {"forward": forward})()
    torch.manual_seed(3)
    made.up = nn.Linear(8, 8)
    return made.eval()


def register(folder, module):
    return nodewire.register(module, list(ROWS), target_vram=10**6, out=folder, name="compared")


CALLS = [0]


def reads_a_global_that_it_changes(self, x):
    CALLS[0] += 1
    return self.up(x) * CALLS[0]


def knows_that_it_is_traced(self, x):
    return self.up(x) * (2 if torch.compiler.is_exporting() else 3)


def takes_rows_as_they_were_traced(self, x):
    return self.up(x) if torch.compiler.is_exporting() or len(x) > 3 else -self.up(x)


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        (reads_a_global_that_it_changes, r"output: is another when the same call is made again: it draws numbers, or"),
        (
            knows_that_it_is_traced,
            r"output: of the tasks is off by 3\.3e-01 of its largest value, for x \[5, 8\]",
        ),
        (
            takes_rows_as_they_were_traced,
            r"output: of the tasks is off by 2\.0e\+00 of its .*, for x \[3, 8\]",
        ),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_the_tasks_put_out_must_be_what_the_model_does(tmp_path, forward, said):
    with pytest.raises(BadTask, match=f"^{said}"):
        register(tmp_path, model(forward))
    assert not (tmp_path / "manifest.msgpack").exists()


def plain(self, x):
    return torch.softmax(self.up(x), -1)


def test_the_report_says_on_how_many_calls_and_how_far_off(tmp_path):
    assert register(tmp_path, model(plain)).report[-1] == "beside the model itself in 2 calls: bit for bit the same"


def refuses_what_is_small(self, x):
    if not torch.compiler.is_exporting() and len(x) < 4:
        raise ValueError("too few")
    return self.up(x)


def test_a_call_that_only_the_comparison_makes_may_be_refused_by_the_model(tmp_path):
    assert "in 1 call:" in register(tmp_path, model(refuses_what_is_small)).report[-1]


def raises_outside_of_a_trace(self, x):
    if not torch.compiler.is_exporting():
        raise LookupError("no such table")
    return self.up(x)


def test_a_model_that_does_not_run_on_its_own_examples_is_refused(tmp_path):
    with pytest.raises(BadTask, match=r"^model: does not run on the examples: LookupError: no such table$"):
        register(tmp_path, model(raises_outside_of_a_trace))


@pytest.mark.parametrize(
    ("wanted", "found", "by"),
    [
        (torch.tensor([1.0, -4.0]), torch.tensor([1.0, -2.0]), 0.5),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), 0.0),
        (torch.tensor([1.0, float("inf")]), torch.tensor([1.0, float("inf")]), 0.0),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, float("nan")]), float("inf")),
        (torch.zeros(2), torch.tensor([0.0, 1e-9]), float("inf")),
        (torch.zeros(2), torch.zeros(3), float("inf")),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float16), float("inf")),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), float("inf")),
        (torch.ones(20).bfloat16(), torch.cat([torch.ones(19), torch.zeros(1)]).bfloat16(), 0.0),
        (torch.empty(0), torch.empty(0), 0.0),
    ],
)
def test_a_difference_is_measured_by_the_largest_value_wanted(wanted, found, by):
    assert parity.off(wanted, found) == by


class Tied(nn.Module):
    """A table that is a head too, a buffer that is stored nowhere, a weight that is asked for its type and place."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.head.weight = self.words.weight
        self.norm = nn.LayerNorm(8)
        self.register_buffer("scale", torch.arange(8.0), persistent=False)

    def forward(self, ids):
        at = torch.arange(ids.shape[1], device=self.words.weight.device, dtype=self.words.weight.dtype)
        return self.head(self.norm(self.words(ids) * self.scale) + at[None, :, None] + self.norm.bias[:1])


def test_a_module_on_the_meta_device_runs_as_it_would_with_its_weights_one_of_which_is_in_memory():
    torch.manual_seed(5)
    real = Tied().eval()
    weights = {name: tensor.detach().clone() for name, tensor in real.named_parameters()}
    with torch.device("meta"):
        empty = Tied().eval()
    read = []

    def parts(name):
        read.append(name)
        return (weights[name],)

    ids = torch.randint(0, 50, (2, 5), generator=torch.Generator().manual_seed(1))
    said = replace(signature(real, ids), positional=1)
    mode = StreamedWeights(empty, parts, {"words.weight": ("words.weight", "head.weight")}, {"scale": real.scale})
    found = parity.eager(empty, said, None, mode)({"ids": ids})
    with torch.no_grad():
        assert torch.equal(found["output"], real(ids))
    assert set(read) == {"words.weight", "norm.weight", "norm.bias"}
    assert all(one.is_meta for one in empty.parameters())
