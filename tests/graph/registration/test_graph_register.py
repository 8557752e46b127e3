"""Any module becomes tasks: what it takes and returns by name, its branches, its tied weights; or says why not."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import nodewire
from bench.tools.task_chain import Carved
from nodewire.errors import BadInput, OverMemory, Unsupported

TARGET = 500_000


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


@dataclass
class Returned:
    last: torch.Tensor
    hidden: tuple
    loss: torch.Tensor | None = None


class Tower(nn.Module):
    """Several inputs in a mapping, several outputs, a tied weight, a constant, a size that is derived."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(300, 64)
        self.blocks = nn.ModuleList(Block(64) for _ in range(3))
        self.head = nn.Linear(64, 300, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 64), persistent=False)

    def forward(self, batch, *, shift=0.0):
        x = self.words(batch["ids"]) * self.scale + shift
        hidden = []
        for block in self.blocks:
            x = block(x) * batch["mask"][..., None]
            hidden.append(x)
        rows, length = batch["ids"].shape
        doubled = torch.cat([x, x], 1).reshape(rows * length * 2, 64)
        pooled = doubled.reshape(rows, 2 * length, 64).mean(1)
        return Returned(self.head(x), tuple(hidden), None), pooled


def batch(rows, length):
    generator = torch.Generator().manual_seed(rows + length)
    ids = torch.randint(0, 300, (rows, length), generator=generator)
    return {"ids": ids, "mask": (torch.rand(rows, length, generator=generator) > 0.2).float()}


@pytest.fixture(scope="module")
def tower():
    torch.manual_seed(3)
    return Tower().eval()


@pytest.fixture(scope="module")
def made(tower, tmp_path_factory):
    examples = (((batch(rows, length),), {"shift": 0.25}) for rows, length in ((2, 8), (4, 20)))
    return nodewire.register(
        tower,
        examples,
        target_vram=TARGET,
        out=tmp_path_factory.mktemp("blobs"),
        name="tower",
        most={"batch": 6},
    )


@pytest.mark.parametrize(("rows", "length"), [(1, 5), (4, 20), (6, 3)])
def test_a_module_as_tasks_returns_all_that_it_returns_bit_for_bit(made, tower, rows, length):
    given = batch(rows, length)
    out = Carved(made)({"batch.ids": given["ids"], "batch.mask": given["mask"]})
    with torch.no_grad():
        whole, pooled = tower(given, shift=0.25)
    wanted = {"0.last": whole.last, "1": pooled} | {f"0.hidden.{k}": one for k, one in enumerate(whole.hidden)}
    assert out.keys() == wanted.keys()
    assert all(torch.equal(out[name], tensor) for name, tensor in wanted.items())


def test_the_customer_itself_sends_to_the_tasks_and_gets_what_they_return(made):
    manifest = made.manifest
    assert manifest.mode == "run"
    assert len(manifest.tasks) > 1
    assert all(task.memory_bytes <= TARGET for task in manifest.tasks)
    names = {f"{edge.source}.to.{edge.target}" for edge in manifest.edges}
    assert names == {edge.name for edge in manifest.edges}
    sent = {tensor.name for edge in manifest.edges if edge.source == "customer" for tensor in edge.tensors}
    assert sent == {"batch.ids", "batch.mask"}


def test_the_report_says_what_bounded_each_cut(made):
    text = "\n".join(made.report)
    assert "blocks." in text
    assert "largest task: " in text
    assert "largest boundary: " in text
    assert "live, most at " in text


def test_calls_are_as_large_as_the_target_has_room_for(tmp_path):
    examples, target = [torch.zeros(1, 64), torch.zeros(2, 64)], 5_000_000
    made = nodewire.register(
        Block(64).eval(),
        examples,
        target_vram=target,
        out=tmp_path,
        name="block",
        most={"batch": 2**14},
    )
    assert target < 2 * max(task.memory_bytes for task in made.manifest.tasks) <= 2 * target
    assert "batch: together at most" in made.report[1]


class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 512), nn.Linear(8, 512)

    def forward(self, x):
        a, b = torch.cond(x.sum() > 0, lambda x: (self.left(x), x + 1), lambda x: (self.right(x), x * 2), (x,))
        return a.sum(1, keepdim=True) * b


def test_both_sides_of_a_branch_are_tasks_operators_and_the_condition_chooses(tmp_path):
    torch.manual_seed(5)
    model = Choosing().eval()
    made = nodewire.register(
        model, [torch.zeros(2, 8), torch.zeros(5, 8)], target_vram=10**6, out=tmp_path, name="choosing"
    )
    carved = Carved(made)
    for x in (torch.full((3, 8), 0.5), torch.full((3, 8), -0.5)):
        with torch.no_grad():
            assert torch.equal(carved({"x": x})["output"], model(x))


def test_a_model_in_training_a_size_too_small_and_a_target_that_is_no_size_are_refused(tmp_path, tower):
    def register(model, example, target=TARGET):
        nodewire.register(model, example, target_vram=target, out=tmp_path, name="refused")

    with pytest.raises(BadInput, match=r"call model\.eval"):
        register(Choosing(), torch.zeros(2, 8))
    with pytest.raises(BadInput, match=r"^target_vram: 'lots'"):
        register(tower, {"batch": batch(1, 4)}, "lots")
    with pytest.raises(OverMemory, match="needs a target of"):
        register(tower, {"batch": batch(1, 4)}, 6_000)
    with pytest.raises(Unsupported, match="float64"):
        register(tower, {"batch": {"ids": torch.zeros(1, dtype=torch.float64)}})
