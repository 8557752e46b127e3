"""What a call leaves on a module and the next reads is refused by name; what nobody reads is let be, and undone."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import nodewire
from bench.tools.task_chain import Carved
from nodewire.errors import BadTask

HERE = Path(__file__).name
ROWS = (torch.ones(2, 8), torch.ones(5, 8))


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.fresh, self.first = 0, True, None
        self.history: list[torch.Tensor] = []
        self.state = SimpleNamespace(count=0, scale=2.0)
        self.seen: dict[str, torch.Tensor] = {}
        self.register_buffer("mean", torch.zeros(8))


def counter(self, x):
    self.calls += 1
    return x * self.calls


def late_counter(self, x):
    self.calls += 1
    return x * 2 if self.calls > 3 else x


def cached_tensor(self, x):
    if self.first is None:
        self.first = x.sum(0)
    return x + self.first


def flag(self, x):
    if self.fresh:
        self.fresh = False
        return x * 2
    return x


def list_that_grows(self, x):
    self.history.append(x.sum(0))
    return x + sum(self.history)


def map_of_results(self, x):
    made = x.sum(0) + self.seen.get("last", 0)
    self.seen["last"] = made
    return x + made


def field_of_an_object(self, x):
    self.state.count += 1
    return x * self.state.count * self.state.scale


def buffer_anew(self, x):
    self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
    return x - self.mean


STATE = {
    counter: "calls",
    late_counter: "calls",
    cached_tensor: "first",
    flag: "fresh",
    list_that_grows: "history",
    map_of_results: "seen",
    field_of_an_object: "state",
    buffer_anew: "mean",
}


def outer(forward):
    model = nn.Module()
    model.inner = type("Inner", (Inner,), {"forward": forward})()
    model.forward = lambda x: model.inner(x)
    return model.eval()


def register(folder, model):
    return nodewire.register(model, list(ROWS), target_vram=10**6, out=folder, name="state")


@pytest.mark.parametrize("forward", STATE, ids=lambda forward: forward.__name__)
def test_what_a_call_leaves_for_the_next_is_refused_by_the_attributes_name_and_the_model_is_left_as_it_was(
    tmp_path, forward
):
    model = outer(forward)
    before = {name: str(value) for name, value in vars(model.inner).items()}
    with pytest.raises(
        BadTask, match=rf"^inner\.{STATE[forward]}: is changed by a call and read by the next, .*each call"
    ):
        register(tmp_path, model)
    assert {name: str(value) for name, value in vars(model.inner).items()} == before


def test_it_says_where_the_next_call_reads_it(tmp_path):
    with pytest.raises(BadTask, match=rf"\(Inner, {HERE}:\d+: self\.calls \+= 1\)$"):
        register(tmp_path, outer(counter))


def written_only(self, x):
    self.calls = len(x.shape)
    self.last = torch.softmax(x, -1)
    self.seen["attention"] = self.last
    return x + self.last


class Lazy(Inner):
    @cached_property
    def doubled(self):
        return self.table * 2

    def forward(self, x):
        return x * self.doubled


def test_a_property_that_is_computed_once_is_no_state(tmp_path):
    model = Lazy().eval()
    model.table = torch.arange(8.0)
    carved = Carved(register(tmp_path, model))
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(carved({"x": x})["output"], model(x))


def test_what_is_written_and_never_read_is_let_be_and_nothing_of_the_trace_stays_on_the_model(tmp_path):
    model = outer(written_only)
    carved = Carved(register(tmp_path, model))
    assert not hasattr(model.inner, "last") and not model.inner.seen and model.inner.calls == 0
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(carved({"x": x})["output"], model(x))
