"""Operators of images and remainders: what modules of them compute, what memory they take, what is refused."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nodewire
from bench.tools.cpu_allocator import Allocated
from bench.tools.task_chain import Carved
from nodewire.errors import BadTask
from nodewire.graph.program.format import Input, Node, Output, Program
from nodewire.graph.program.interpreter import Interpreter
from nodewire.graph.program.verification import verify
from nodewire.graph.program.whitelist import OPS, TRANSPOSED, Ref
from nodewire.graph.program.workspace import as_on_cpu, workspace_bytes
from nodewire.kind import Registration


class Call(nn.Module):
    def __init__(self, call, *parts):
        super().__init__()
        self.call, self.parts = call, nn.ModuleList(parts)

    def forward(self, x):
        return self.call(x, *self.parts)


class Down(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inner, outer, 3, padding="same"), nn.BatchNorm2d(outer)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class UNet(nn.Module):
    """Two levels down, two up: one by a transposed convolution, one resized; skips joined."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.middle = Down(3, 8), Down(8, 16), Down(16, 16)
        self.up = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.after, self.last = Down(32, 8), Down(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        a = self.first(x)
        b = self.second(F.max_pool2d(a, 2))
        c = self.after(torch.cat((self.up(self.middle(F.max_pool2d(b, 2))), b), 1))
        c = F.interpolate(c, scale_factor=2, mode="bilinear", align_corners=False)
        return self.head(self.last(torch.cat((c, a), 1)))


MODULES = {
    "nearest": Call(lambda x: F.interpolate(x, scale_factor=2)),
    "nearest to a size": Call(lambda x: F.interpolate(x, size=(5, 17))),
    "bilinear": Call(lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=False)),
    "bilinear, corners": Call(lambda x: F.interpolate(x, size=(13, 3), mode="bilinear", align_corners=True)),
    "bicubic": Call(lambda x: F.interpolate(x, size=(12, 12), mode="bicubic")),
    "transposed": Call(lambda x, m: m(x), nn.ConvTranspose2d(3, 6, 3, 2, 1, 1, groups=3, dilation=2)),
    "transposed, one dimension": Call(lambda x, m: m(x.flatten(2)), nn.ConvTranspose1d(3, 4, 5, 3)),
    "valid": Call(lambda x, m: m(x), nn.Conv2d(3, 4, 3, padding="valid", stride=2)),
    "remainders": Call(lambda x: torch.fmod(x, 0.7) + torch.remainder(x, x.abs() + 1) + x % 2),
    "signs": Call(lambda x: torch.sign(x) + torch.ceil(x) - torch.floor(x) * torch.round(x)),
    "scattered by a mask": Call(lambda x: torch.zeros_like(x).masked_scatter(x > 0, x * 2)),
    "rolled": Call(lambda x: torch.roll(x, (-3, 9, 2), (2, 3, 2)) + torch.roll(x[:1], 5)),
    "U-Net": UNet(),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_registered_computes_what_it_does(tmp_path, name):
    torch.manual_seed(5)
    module = MODULES[name].eval()
    examples = [torch.randn(n, 3, 16, 16) for n in (1, 3)]
    made = nodewire.register(module, examples, target_vram="2GB", out=tmp_path, name="m")
    assert isinstance(made, Registration)
    (entry,) = {one.tensors[0].name for one in made.manifest.edges if one.source == "customer"}
    for example in examples:
        with torch.no_grad():
            wanted = module(example)
        (found,) = Carved(made)({entry: example}).values()
        assert (found - wanted).abs().max() <= (5e-6 if name == "bicubic" else 0)  # which is made of others


def test_a_transformer_of_torch_itself_is_registered_at_all_lengths(tmp_path):
    torch.manual_seed(5)
    module = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    examples = [(torch.randn(b, s, 16), torch.randn(b, t, 16)) for b, s, t in ((1, 5, 4), (3, 7, 8))]
    made = nodewire.register(module, examples, target_vram="2GB", out=tmp_path, name="m")
    for source, target in examples:
        with torch.no_grad():
            wanted = module(source, target)
        (found,) = Carved(made)({"src": source, "tgt": target}).values()
        assert (found - wanted).abs().max() < 1e-6


def _laid(x, how):
    if how == "channels last":
        return x.contiguous(memory_format=torch.channels_last)
    if how == "turned":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return x[:1].expand(x.shape) if how == "repeated" else x


def _called(rng):
    """An operator with arguments that it takes."""
    dtype = rng.choice((torch.float32, torch.float32, torch.bfloat16))
    which = rng.choice(("transposed", "nearest", "bilinear", "masked"))
    groups = rng.choice((1, 1, 2)) if which == "transposed" else 1
    shape = (rng.randint(1, 4), groups * rng.randint(1, 30), rng.randint(1, 20), rng.randint(1, 20))
    x = _laid(torch.randn(shape).to(dtype), rng.choice(("", "channels last", "turned", "repeated")))
    if which == "transposed":
        weight = torch.randn(shape[1], rng.randint(1, 30), rng.randint(1, 5), rng.randint(1, 5)).to(dtype)
        return TRANSPOSED[1], (x, weight, None, [2, rng.randint(1, 3)], [0, 0], [rng.randint(0, 1), 0], groups, [2, 1])
    if which == "masked":
        return "aten.masked_scatter.default", (
            x,
            torch.randn(shape[1:]) > 0,
            _laid(torch.randn(shape).to(dtype), "turned"),
        )
    sizes = rng.choice((([rng.randint(1, 40)] * 2, None), (None, [rng.uniform(1, 3), 2.0])))
    if which == "nearest":
        return "aten.upsample_nearest2d.vec", (x, *sizes)
    return "aten.upsample_bilinear2d.vec", (x, sizes[0], rng.random() < 0.5, sizes[1])


def test_no_operator_takes_more_memory_than_is_predicted_and_results_lie_as_they_are_said_to():
    rng = random.Random(3)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    for _ in range(150):
        name, args = _called(rng)
        op = OPS[name]
        op.call(*args)  # what a first call makes for all later ones
        with Allocated() as allocated:
            result = op.call(*args)
        meta = [
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="meta")
            if isinstance(one, torch.Tensor)
            else one
            for one in args
        ]
        given = op.bound(meta, {})
        said = op.call(*meta)
        said = as_on_cpu(op, given, said) if name in TRANSPOSED else said
        assert (said.shape, said.dtype) == (result.shape, result.dtype), (name, args[2:])
        assert said.is_contiguous() == result.is_contiguous()
        taken = allocated.peak_bytes - result.untyped_storage().nbytes()
        assert taken <= workspace_bytes(op, given, [said], 1) + 2_048, (name, [getattr(a, "shape", a) for a in args])


def _program(op, *more):
    nodes = (Node("n", op, (Ref("x"), *more)),)
    return Program(
        {"b": 4},
        4,
        (Input("x", torch.int64, ("b", 2), "in"),),
        (),
        nodes,
        (Output("n", "n", torch.int64, ("b", 2), "out"),),
    )


@pytest.mark.parametrize("op", ["fmod", "remainder"])
def test_a_remainder_of_whole_numbers_which_could_stop_the_process_is_refused_before_it_is_computed(op):
    program = _program(f"aten.{op}.Scalar", -1)
    with pytest.raises(BadTask, match="of whole numbers"):
        verify(program, 2**20)
    with pytest.raises(BadTask, match="of whole numbers"):
        Interpreter(program, {})({"x": torch.full((1, 2), -(2**63))}, {"b": 1})
