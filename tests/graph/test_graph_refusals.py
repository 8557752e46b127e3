"""What cannot be a program is refused in one sentence: the module within the model, its class, the line, what to do."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pack_padded_sequence

import nodewire
from bench.tools.task_chain import Carved
from nodewire.errors import BadInput, BadTask, Unsupported

HERE = Path(__file__).name
ROWS = (torch.zeros(2, 8), torch.zeros(5, 8))
SEQUENCES = (torch.zeros(2, 6, 8), torch.zeros(3, 9, 8))


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def register(folder, model, *examples):
    return nodewire.register(model.eval(), list(examples), target_vram=10**6, out=folder, name="refused")


def as_large_as_its_values_say(self, x):
    return x[x > 0]


def branch_on_a_value(self, x):
    return x * 2 if x.sum() > 0 else x


def number_of_a_value(self, x):
    return x * float(x.sum())


def item(self, x):
    return x * x.sum().item()


def numpy_in_between(self, x):
    return torch.from_numpy(np.tanh(x.numpy()))


def branch_on_the_batch(self, x):
    return x * 2 if x.shape[0] > 3 else x


def loop_over_rows(self, x):
    return torch.stack([row * k for k, row in enumerate(x)])


def batch_of_one_size(self, x):
    return x + torch.arange(int(x.shape[0])).tolist()[-1]


def table_of_one_size(self, x):
    return x * self.table


def flattened(self, x):
    return x.reshape(-1)


def random_number(self, x):
    return x + torch.rand_like(x)


def dropout_that_forgets_to_ask(self, x):
    return dropout(x, 0.1)


def complex_numbers(self, x):
    return torch.view_as_real(torch.view_as_complex(x.reshape(-1, 4, 2)) * 2).reshape(-1, 8)


def double(self, x):
    return x.double() * 2


def short(self, x):
    return x.sort().indices.to(torch.int16) * 2


def buffer_in_place(self, x):
    self.seen.add_(1)
    return x * self.seen


def constant_in_place(self, x):
    self.kept += 1
    return x * self.kept


def slice_of_a_constant_in_place(self, x):
    self.kept[:1].mul_(2)
    return x * self.kept


def input_in_place(self, x):
    return x.mul_(2)


def part_in_place(self, x):
    made = x.clone()
    made[:, 0] = 0
    return made


def modules_in_a_list(self, x):
    return self.layers[1](self.layers[0](x))


def modules_in_a_map(self, x):
    return self.layers["up"](x)


def made(forward):
    """A module of that forward, with whatever any of them looks for."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = torch.ones(8)
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("table", torch.ones(17, 8))
            if "layers" in forward.__code__.co_names:
                self.layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
            if forward is modules_in_a_map:
                self.layers = {"up": nn.Linear(8, 8)}

    Inner.forward = forward
    return Inner()


SAID = {
    as_large_as_its_values_say: "inner: makes a tensor as large as its data says: give it a size of the inputs'",
    branch_on_a_value: r"inner: cannot be exported: it branches on a tensor's value.*use torch\.where",
    number_of_a_value: r"inner: cannot be exported: it makes a number of a tensor's value .*compute with the tensor",
    item: r"inner: takes a number out of a tensor: .*without item",
    numpy_in_between: "inner: cannot be exported: numpy cannot be traced: use torch's own",
    branch_on_the_batch: r"inner: cannot run at batch 2: it needs batch > 3; compute the same at every size, or let",
    loop_over_rows: r"inner: makes a constant of batch, which is said to vary: .* without int\(\), range\(\) or a loop",
    batch_of_one_size: "inner: makes a constant of batch, which is said to vary",
    table_of_one_size: "inner: cannot be exported: a size that is said to vary meets one that is fixed: give it one",
    flattened: "output: leaves with the size .* derived from others: return it unflattened",
    random_number: "inner: uses aten.rand_like.default, which no task may: it draws random numbers: take them as an",
    dropout_that_forgets_to_ask: r"inner: uses aten\.\w+\.\w+, which .* or tell dropout training=self\.training",
    complex_numbers: r"inner: uses aten\.view_as_complex\.default, which no task may: it computes with complex numbers",
    double: "inner: computes in float64, which no task does",
    short: "inner: computes in int16, which no task does",
    buffer_in_place: r"inner\.seen: is changed by a call, and a task keeps nothing between calls: make it an input and",
    constant_in_place: r"inner\.kept: is changed by a call, and a task keeps nothing between calls: make it an input",
    slice_of_a_constant_in_place: r"inner\.kept: is changed by a call, and a task keeps nothing between calls",
    input_in_place: r"x: is an input that a call writes into, .*: work on a clone\(\)",
    part_in_place: r"inner: uses aten\.\w+\.\w+, which no task may: it writes into a part of a tensor: make a new",
    modules_in_a_list: r"inner\.layers: holds modules where the model does not see their weights: use torch",
    modules_in_a_map: r"inner\.layers: holds modules where the model does not see their weights: use torch",
}


@pytest.mark.parametrize("forward", SAID, ids=lambda forward: forward.__name__)
def test_what_cannot_be_a_program_is_refused_by_its_modules_path_its_class_and_its_line(tmp_path, capfd, forward):
    with pytest.raises(BadTask, match=f"^{SAID[forward]}") as refused:
        register(tmp_path, Outer(made(forward)), *ROWS)
    assert re.search(rf"\(Inner(, {HERE}:\d+: .+)?\)$", str(refused.value))
    assert "layers" in forward.__code__.co_names or f"{HERE}:" in str(refused.value)
    assert len(str(refused.value)) < 400
    assert refused.value.__suppress_context__ or refused.value.__context__ is None, "the sentence says all"
    assert capfd.readouterr().err == ""


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cell = kind(8, 4, batch_first=True, **options)

    def forward(self, x):
        return self.cell(x)[0]


class Packing(Recurrent):
    def forward(self, x):
        lengths = torch.full((2,), 6)
        return self.cell(pack_padded_sequence(x, lengths, batch_first=True))[0].data


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_recurrence_over_a_varying_length_is_refused_and_over_a_fixed_one_it_is_unrolled(tmp_path, kind):
    torch.manual_seed(2)
    model = Outer(Recurrent(kind))
    said = (
        r"^inner\.cell: goes through a sequence of varying length step by step, .*: give it one length in all examples"
    )
    with pytest.raises(BadTask, match=rf"{said} \({kind.__name__}, {HERE}:\d+: "):
        register(tmp_path, model, *SEQUENCES)
    carved = Carved(register(tmp_path, model, torch.zeros(2, 6, 8), torch.zeros(5, 6, 8)))
    for rows in (1, 3):
        x = torch.randn(rows, 6, 8)
        with torch.no_grad():
            assert torch.allclose(carved({"x": x})["output"], model(x), atol=1e-6)


def test_a_packed_sequence_is_refused(tmp_path):
    with pytest.raises(BadTask, match=r"^inner(\.cell)?: .*give it the padded batch, and mask it \(\w+, "):
        register(tmp_path, Outer(Packing(nn.GRU)), torch.zeros(2, 6, 8))


def test_a_quantized_part_and_a_scripted_one_are_refused_as_what_they_are(tmp_path):
    plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, torch.qint8)
        scripted = torch.jit.script(nn.Linear(8, 8))
    with pytest.raises(BadTask, match=r"^inner\.0: keeps its weights packed or quantized, .*as it was \w+ \(Linear\)"):
        register(tmp_path, Outer(quantized), *ROWS)
    with pytest.raises(BadTask, match=r"^inner: is TorchScript, which cannot be traced: give the module that it was"):
        register(tmp_path, Outer(scripted), *ROWS)


class Told(nn.Module):
    """What is no tensor is a model's own affair, and part of its program."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x, mask=None, *, how="relu", options=None):
        x = self.up(x) if mask is None else self.up(x) * mask
        return getattr(torch, how)(x) * (options or {}).get("scale", 1.0)


def test_arguments_that_are_none_or_words_are_part_of_the_program_and_may_not_differ(tmp_path):
    model = Told()
    named = {"mask": None, "how": "tanh", "options": {"scale": 0.5, "name": "a"}}
    carved = Carved(register(tmp_path, model, *((((x,), named)) for x in ROWS)))
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(carved({"x": x})["output"], model(x, **named))
    with pytest.raises(BadInput, match=r"^how: differs between the examples and is no tensor"):
        register(tmp_path, model, ((ROWS[0],), {"how": "tanh"}), ((ROWS[1],), {"how": "relu"}))
    with pytest.raises(Unsupported, match=r"^options: a object is neither a tensor nor made of tensors"):
        register(tmp_path, model, ((ROWS[0],), {"options": object()}))


class Returning(nn.Module):
    def __init__(self, returned):
        super().__init__()
        self.returned = returned

    def forward(self, x):
        return self.returned(x)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (lambda x: {"loss": x, "cache": object()}, "cache: a object is neither a tensor nor made of tensors"),
        (lambda x: 3, "model: returns no tensor"),
        (lambda x: (x > 0, x.to(torch.complex64)), "(1|model): (leaves as|computes in) complex64, which no task"),
        (lambda x: x.sum(0).to(torch.float64), "(output|model): (leaves as|computes in) float64, which no task"),
    ],
)
def test_what_is_returned_and_is_no_tensor_of_tasks_is_named(tmp_path, returned, said):
    with pytest.raises(BadInput, match=f"^{said}"):
        register(tmp_path, Returning(returned), *ROWS)


def test_weights_of_a_dtype_that_no_task_has_are_named(tmp_path):
    inner = nn.Linear(8, 8)
    inner.weight = nn.Parameter(torch.zeros(8, 8, dtype=torch.complex64))
    with pytest.raises(BadTask, match=r"^inner\.weight: a weight of complex64, which no task has: float32, "):
        register(tmp_path, Outer(inner), *(x.to(torch.float32) for x in ROWS))


class Tower(torch.nn.Module):
    """A sequence beside itself, which is as long as no input, through some layers."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 512), torch.nn.Linear(512, 16)

    def forward(self, x):
        x = torch.cat((x, x), 1)
        for _ in range(6):
            x = self.down(torch.relu(self.up(x)))
        return x


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = Tower(), Tower()

    def forward(self, x, y):
        return (self.left(x) @ self.right(y).transpose(1, 2)).mean((1, 2))


def test_a_derived_size_between_tasks_is_refused_by_its_modules_path_and_line_with_what_to_do():
    examples = [tuple(torch.zeros(b, s, 16) for s in sizes) for b, sizes in ((1, (3, 4)), (2, (5, 6)))]
    with pytest.raises(
        BadTask, match=r"derived from others.*: give it an input's size .*\(Linear, .*\.py:\d+"
    ) as refused:
        nodewire.register(Two().eval(), examples, target_vram=400_000, name="m", dry_run=True)
    assert refused.value.field == "left.down"
