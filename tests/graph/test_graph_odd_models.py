"""Models whose authors name things as they like, and look up only what is there."""

import pytest
import torch
from torch import nn

import nodewire
from bench.tools.task_chain import Carved
from nodewire.errors import BadInput, BadTask

ROWS = [torch.randn(2, 8), torch.randn(5, 8)]


def register(folder, model, examples, **more):
    return nodewire.register(model, examples, **{"target_vram": "1MB", "out": folder, "name": "odd", **more})


class Named(nn.Module):
    """Its parts are applied one after the other."""

    def __init__(self, *names):
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(8, 8) for name in names})
        self.eval()

    def forward(self, x):
        for part in self.parts.values():
            x = torch.relu(part(x))
        return x


@pytest.mark.parametrize(
    "names",
    [
        ("/etc/passwd", "../up".replace(".", "-"), "a b", "ü"),
        ("a b", "a_b", "a-b", "a b.again".replace(".", "_")),
        tuple("q" * 300 + str(n) for n in range(7)),
    ],
    ids=["paths", "alike", "long"],
)
def test_weights_are_those_of_their_modules_whatever_these_are_called(tmp_path, names):
    torch.manual_seed(3)
    model = Named(*names)
    carved = Carved(register(tmp_path / "out", model, ROWS))
    x = torch.randn(4, 8)
    with torch.no_grad():
        assert torch.equal(carved({"x": x})["output"], model(x))
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


class Two(nn.Module):
    def forward(self, Rows, rows):  # noqa: N803 - torch names an input by the argument
        return Rows - rows


class Twice(nn.Module):
    def forward(self, x):
        return {"A": x + 1, "a": x - 1}


def test_two_tensors_of_one_name_are_refused_and_none_is_lost(tmp_path):
    with pytest.raises(BadInput, match=r"^rows: is what two tensors are called"):
        register(tmp_path, Two(), [{"Rows": x, "rows": x} for x in ROWS])
    with pytest.raises(BadInput, match=r"^a: is what two tensors are called"):
        register(tmp_path, Twice().eval(), ROWS)


class Batch(nn.Module):
    def __init__(self):
        super().__init__()
        self.batch = nn.Linear(8, 8)
        self.eval()

    def forward(self, batch, x_1):
        return self.batch(batch) + x_1.sum()


def test_inputs_may_be_called_as_sizes_are(tmp_path):
    shown = [{"batch": x, "x_1": torch.randn(n, n)} for n, x in zip((3, 4), ROWS, strict=True)]
    model = Batch()
    carved = Carved(register(tmp_path, model, shown))
    with torch.no_grad():
        assert torch.equal(carved(shown[0])["output"], model(**shown[0]))


@pytest.mark.parametrize("axis", ["some", "x", "Rows", "a b"])
def test_a_size_that_cannot_be_called_so_is_refused(tmp_path, axis):
    with pytest.raises(BadInput, match=r"^axes: .* cannot name a size"):
        register(tmp_path, Named("a"), [{"x": x} for x in ROWS], axes={"x": (axis, None)})


@pytest.mark.parametrize(
    ("field", "label"), [("name", "../up"), ("name", "a\nb"), ("name", ""), ("license", "x" * 129)]
)
def test_labels_that_no_manifest_takes_are_refused_before_anything_is_traced(tmp_path, monkeypatch, field, label):
    monkeypatch.setattr("nodewire.graph.registration.register.trace", None)
    said = {"name": label} if field == "name" else {"license": label}
    with pytest.raises(BadInput, match=f"^{field}: "):
        register(tmp_path / "out", Named("a"), ROWS, **said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "examples", "error"),
    [
        (Named("a"), [()], r"no tensor is among them|forward"),
        (Named("a"), [], "none"),
    ],
)
def test_examples_that_no_task_can_be_made_of_are_refused(tmp_path, model, examples, error):
    with pytest.raises((BadInput, BadTask), match=error):
        register(tmp_path, model, examples)


class Alone(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(8))
        self.eval()

    def forward(self):
        return self.w * 2


def test_a_model_that_takes_nothing_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"^examples: no tensor"):
        register(tmp_path, Alone(), [()])


class Chooses(nn.Module):
    """What is not in the table is not looked up: the other side of the branch would find nothing there."""

    def __init__(self, look_up):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.look_up = look_up
        self.eval()

    def forward(self, ids):
        return torch.cond(
            ids.amax() < 10,
            lambda ids: self.look_up(self.table.weight, ids),
            lambda ids: torch.cond(
                ids.amax() < 20,
                lambda ids: self.look_up(self.table.weight, ids - 10) * 2,
                lambda ids: self.look_up(self.table.weight, ids.clamp(max=9)) * 3,
                (ids,),
            ),
            (ids,),
        )


@pytest.mark.parametrize(
    "look_up",
    [
        lambda table, ids: nn.functional.embedding(ids, table),
        lambda table, ids: table[ids],
        lambda table, ids: table.index_select(0, ids),
        lambda table, ids: table[:, 0].gather(0, ids),
    ],
    ids=["embedding", "index", "index_select", "gather"],
)
def test_a_branch_that_is_not_taken_refuses_no_index(tmp_path, look_up):
    model = Chooses(look_up)
    carved = Carved(register(tmp_path, model, [(torch.arange(3),), (torch.arange(7),)]))
    for ids in (torch.arange(5), torch.arange(10, 17), torch.arange(36, 40), torch.tensor([3, 99])):
        with torch.no_grad():
            assert torch.equal(carved({"ids": ids})["output"], model(ids))


def test_a_branch_that_is_taken_refuses_what_is_not_there(tmp_path):
    model = Chooses(lambda table, ids: nn.functional.embedding(ids, table))
    carved = Carved(register(tmp_path, model, [(torch.arange(3),), (torch.arange(7),)]))
    for ids in ([-1, 3], [3, 12]):
        with pytest.raises(BadInput, match=f"index -{1 if ids[0] < 0 else 7} of 10 rows"):
            carved({"ids": torch.tensor(ids)})
