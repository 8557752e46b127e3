"""A mixture of experts is found, rewritten and cut: each group's task is sent its own rows, and the sum is the same."""

from dataclasses import replace

import pytest
import torch

import nodewire
from bench.tools.task_chain import Carved
from nodewire.errors import BadInput, BadTask, TooLarge
from nodewire.graph.cut.decomposition import decompose, memory_bytes
from nodewire.graph.cut.experts import mixtures, rewrite
from nodewire.graph.program.dispatch import scatter_rows, select_rows
from nodewire.graph.program.format import SOME, Input, Node, Output, Program, Weight
from nodewire.graph.program.interpreter import Interpreter, bind
from nodewire.graph.program.verification import verify
from nodewire.graph.program.whitelist import OPS, Ref
from nodewire.graph.program.workspace import workspace_bytes

F32, I64 = torch.float32, torch.int64
EXPERTS, CHOICES, WIDTH, INNER = 6, 2, 48, 40
"""Every matrix is above what is made again by whoever uses it."""


def mixture(turned=False, biased=False):
    """As transformers exports its "batched_mm": whole matrices, and biases, are gathered for every row and choice."""
    up = (EXPERTS, WIDTH, 2 * INNER) if turned else (EXPERTS, 2 * INNER, WIDTH)
    down = (EXPERTS, INNER, WIDTH) if turned else (EXPERTS, WIDTH, INNER)

    def product(name, weight, rows):
        gathered, at = Ref(f"{name}.weights"), 1 if turned else -1
        wide = f"{name}.wide"
        yield Node(gathered.name, "aten.index.Tensor", (Ref(weight), [Ref("ids")]))
        yield Node(wide, "aten.unsqueeze.default", (Ref(rows), at))
        yield Node(f"{name}.out", "aten.bmm.default", (Ref(wide), gathered) if turned else (gathered, Ref(wide)))
        yield Node(f"{name}.product" if biased else name, "aten.squeeze.dim", (Ref(f"{name}.out"), at))
        if biased:
            yield Node(f"{name}.biases", "aten.index.Tensor", (Ref(f"{weight}.bias"), [Ref("ids")]))
            yield Node(name, "aten.add.Tensor", (Ref(f"{name}.product"), Ref(f"{name}.biases")))

    nodes = (
        Node("x", "aten.linear.default", (Ref("given"), Ref("before"))),
        Node("flat", "aten.reshape.default", (Ref("x"), [-1, WIDTH])),
        Node("rows", "py.mul", (Ref("b"), Ref("s"))),
        Node("once", "aten.unsqueeze.default", (Ref("flat"), 1)),
        Node("often", "aten.expand.default", (Ref("once"), [-1, CHOICES, -1])),
        Node("each", "aten.clone.default", (Ref("often"),)),
        Node("repeated", "aten.reshape.default", (Ref("each"), [-1, WIDTH])),
        Node("ids", "aten.reshape.default", (Ref("chosen"), [-1])),
        Node("shares", "aten.reshape.default", (Ref("weights"), [-1])),
        *product("first", "up", "repeated"),
        Node("pieces", "aten.split.Tensor", (Ref("first"), INNER, -1)),
        Node("gate", "py.getitem", (Ref("pieces"), 0)),
        Node("value", "py.getitem", (Ref("pieces"), 1)),
        Node("open", "aten.silu.default", (Ref("gate"),)),
        Node("inner", "aten.mul.Tensor", (Ref("open"), Ref("value"))),
        *product("second", "down", "inner"),
        Node("share", "aten.unsqueeze.default", (Ref("shares"), -1)),
        Node("weighted", "aten.mul.Tensor", (Ref("second"), Ref("share"))),
        Node("parted", "aten.reshape.default", (Ref("weighted"), [Ref("rows"), CHOICES, WIDTH])),
        Node("total", "aten.sum.dim_IntList", (Ref("parted"), [1])),
        Node("back", "aten.reshape.default", (Ref("total"), [Ref("b"), Ref("s"), WIDTH])),
        Node("added", "aten.add.Tensor", (Ref("back"), Ref("x"))),
        Node("out", "aten.linear.default", (Ref("added"), Ref("after"))),
    )
    square = (WIDTH, WIDTH)
    program = Program(
        dims={"b": 4, "s": 8},
        volume=16,
        inputs=(
            Input("given", F32, ("b", "s", WIDTH)),
            Input("chosen", I64, ("b", "s", CHOICES)),
            Input("weights", F32, ("b", "s", CHOICES)),
        ),
        weights=(
            Weight("before", F32, square),
            Weight("up", F32, up),
            Weight("down", F32, down),
            Weight("after", F32, square),
            *((Weight("up.bias", F32, (EXPERTS, 2 * INNER)), Weight("down.bias", F32, (EXPERTS, WIDTH))) * biased),
        ),
        nodes=nodes,
        outputs=(Output("out", "out", F32, ("b", "s", WIDTH), "result"),),
    )
    plain = ("b", "s", WIDTH)
    return program, dict.fromkeys(("x", "back", "added", "out"), plain)


def given(batch, length, chosen=None):
    generator = torch.Generator().manual_seed(batch * 100 + length)
    rows = torch.rand(batch, length, EXPERTS, generator=generator)
    share, picked = rows.topk(CHOICES, dim=-1)
    if chosen is not None:
        picked = torch.tensor(chosen).expand(batch, length, CHOICES).contiguous()
    x = torch.randn(batch, length, WIDTH, generator=generator)
    return {"given": x, "chosen": picked, "weights": share}


def weights_of(program):
    generator = torch.Generator().manual_seed(5)
    return {w.name: torch.randn(w.shape, generator=generator) / 7 for w in program.weights}


def run(done, stored, inputs):
    """What tasks put out, and the rows that each group of experts was sent."""
    weights = {n: stored[r.source][r.first : r.last] for n, r in done.ranges.items()} | stored
    arrived = {("driver", name): tensor for name, tensor in inputs.items()}
    rows = {}
    for name, task in done.tasks.items():
        sent = {i.name: arrived[i.edge.removesuffix(f".to.{name}"), i.name] for i in task.program.inputs}
        if name.startswith("experts."):
            (rows[name],) = (len(tensor) for one, tensor in sent.items() if one.endswith(".x"))
        made = Interpreter(task.program, {w.name: weights[w.name] for w in task.program.weights})(
            sent, bind(task.program, sent)
        )
        arrived.update({(name, out.name): made[out.value] for out in task.program.outputs})
    return next(tensor for (_, name), tensor in arrived.items() if name == "out"), rows


@pytest.fixture(
    params=[(turned, biased) for turned in (False, True) for biased in (False, True)],
    ids=["straight", "straight, biased", "turned", "turned, biased"],
)
def model(request):
    return mixture(*request.param)


@pytest.mark.parametrize("target", [10**7, 120_000, 70_000])
def test_the_experts_of_a_target_give_what_the_whole_model_does(model, target):
    program, shapes = model
    done = decompose(program, shapes, target, least_volume=8)
    parts = [name for name in done.tasks if name.startswith("experts.")]
    assert bool(parts) == (target < 10**6)
    for name, task in done.tasks.items():
        found = verify(Program.decode(task.program.encode()), target)
        assert replace(found, program=task.program) == task, name
        assert memory_bytes(task, target) <= target
    stored = weights_of(program)
    for batch, length in ((1, 1), (2, 4), (1, 7)):
        inputs = given(batch, length)
        whole = Interpreter(program, stored)(inputs, {"b": batch, "s": length})["out"]
        out, rows = run(done, stored, inputs)
        assert (out - whole).abs().max() <= 5e-6
        assert all(count <= batch * length for count in rows.values())


def test_a_group_is_sent_its_own_rows_only_and_none_if_nobody_chose_it(model):
    program, shapes = model
    done = decompose(program, shapes, 10**7, least_volume=8, expert_groups=3)
    assert sum(name.startswith("experts.") for name in done.tasks) == 3
    stored, inputs = weights_of(program), given(2, 3, [0, 5])
    out, rows = run(done, stored, inputs)
    assert rows == {"experts.0.0": 6, "experts.0.1": 0, "experts.0.2": 6}
    whole = Interpreter(program, stored)(inputs, {"b": 2, "s": 3})["out"]
    assert (out - whole).abs().max() <= 5e-6


def test_gathered_weights_of_another_form_are_left_as_they_are(model):
    program, shapes = model
    assert len(mixtures(program, shapes)) == 1
    nodes = tuple(replace(n, op="aten.add.Tensor") if n.name == "weighted" else n for n in program.nodes)
    assert mixtures(replace(program, nodes=nodes), shapes) == []
    assert mixtures(program, {}) == []
    assert rewrite(program, shapes, [], 1).program == program


@pytest.mark.parametrize(
    "changed",
    [
        Node("first.biases", "aten.index.Tensor", (Ref("up.bias"), [Ref("other")])),
        Node("first.product", "aten.clone.default", (Ref("first.out"),)),
    ],
    ids=["by another expert", "to other sizes"],
)
def test_biases_that_are_added_in_another_way_are_left_as_they_are(changed):
    program, shapes = mixture(biased=True)
    other = Node("other", "aten.reshape.default", (Ref("chosen"), [-1]))
    nodes = (other, *(changed if n.name == changed.name else n for n in program.nodes))
    assert len(mixtures(program, shapes)) == 1
    assert mixtures(replace(program, nodes=nodes), shapes) == []


def test_rows_come_back_where_they_were_and_wrong_numbers_of_them_are_refused():
    x = torch.arange(12.0).reshape(2, 3, 2)
    chosen = torch.tensor([[[0, 1], [2, 3], [1, 2]], [[0, 3], [1, 0], [2, 3]]])
    rows = select_rows(x, chosen, 1, 2)
    assert rows.tolist() == [[0, 1], [4, 5], [8, 9]]
    back = scatter_rows(rows, chosen, 1, 2)
    assert back.shape == x.shape
    assert torch.equal(back[(chosen == 1).any(-1)], rows) and back.sum() == rows.sum()
    for wrong in (lambda: select_rows(x[:1], chosen, 0, 1), lambda: scatter_rows(rows[:1], chosen, 1, 2)):
        with pytest.raises(ValueError, match="rows"):
            wrong()
    with pytest.raises(ValueError, match="int64"):
        select_rows(x, chosen.float(), 0, 1)


@pytest.mark.parametrize("width", [1, 64])
def test_selection_takes_no_more_memory_than_is_predicted(width):
    x, chosen = torch.randn(500, width), torch.zeros(500, 4, dtype=I64)
    for op, of in ((OPS["nodewire.select_rows"], x), (OPS["nodewire.scatter_rows"], x)):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            kept = op.call(of, chosen, 0, 1)
        now = most = 0
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        for event in sorted(events, key=lambda e: e.start_ns()):
            now += event.nbytes()
            most = max(most, now)
        given = op.bound([of, chosen, 0, 1], {})
        assert most <= kept.nbytes + workspace_bytes(op, given, [kept], 1) <= 1.5 * most


def test_gradients_pass_through_selection():
    x = torch.randn(4, 3, requires_grad=True)
    chosen = torch.tensor([[0], [1], [1], [0]])
    scatter_rows(select_rows(x, chosen, 1, 2) * 2, chosen, 1, 2).sum().backward()
    assert x.grad.tolist() == [[0] * 3, [2] * 3, [2] * 3, [0] * 3]


def test_what_data_decide_is_bounded_by_the_volume_and_hides_behind_no_other_name():
    program = Program(
        dims={},
        volume=4,
        inputs=(Input("x", F32, (SOME, 2), "in"), Input("y", F32, (SOME, 2), "in")),
        weights=(),
        nodes=(Node("z", "aten.neg.default", (Ref("x"),)),),
        outputs=(Output("z", "z", F32, (SOME, 2), "out"),),
    )
    again = Program.decode(program.encode())
    assert again == program
    assert verify(again, 10**6).peak_bytes == 3 * 4 * 2 * 4
    assert bind(again, {"x": torch.zeros(0, 2), "y": torch.zeros(4, 2)})[SOME] == 4
    with pytest.raises(TooLarge, match=r"^x: 5 rows"):
        bind(again, {"x": torch.zeros(5, 2), "y": torch.zeros(4, 2)})
    with pytest.raises(BadInput, match=r"^x"):
        bind(again, {"x": torch.zeros(1, 3), "y": torch.zeros(4, 2)})
    for wrong in (
        replace(program, inputs=(Input("x", F32, (2, SOME), "in"), program.inputs[1])),
        replace(program, weights=(Weight("w", F32, (SOME, 2)),)),
        replace(program, dims={SOME: 4}),
        replace(program, outputs=(Output("z", "z", F32, (SOME, 3), "out"),)),
    ):
        with pytest.raises(BadTask):
            verify(Program.decode(wrong.encode()), 10**6)


class Mixed(torch.nn.Module):
    """A router with its experts as transformers computes them where every operator is known ("batched_mm")."""

    def __init__(self, biased=False):
        super().__init__()
        self.before, self.after = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.router = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = torch.nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) / 7)
        self.down = torch.nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / 7)
        self.biases = torch.nn.ParameterList(torch.randn(EXPERTS, n) for n in (2 * INNER, WIDTH)) if biased else None

    def product(self, matrices, rows, ids, number):
        out = torch.bmm(matrices[ids], rows.unsqueeze(-1)).squeeze(-1)
        return out if self.biases is None else out.add_(self.biases[number][ids])

    def forward(self, x):
        x = self.before(x)
        flat = x.view(-1, WIDTH)
        share, chosen = torch.topk(self.router(flat).softmax(-1), CHOICES, dim=-1)
        rows, ids = flat.repeat_interleave(CHOICES, dim=0), chosen.reshape(-1)
        gate, value = self.product(self.up, rows, ids, 0).chunk(2, dim=-1)
        inner = torch.nn.functional.silu(gate) * value
        out = self.product(self.down, inner, ids, 1) * share.reshape(-1).unsqueeze(-1)
        return self.after(x + out.view(flat.size(0), CHOICES, WIDTH).sum(1).reshape(x.shape))


@pytest.mark.parametrize("biased", [False, True])
def test_a_module_with_a_router_is_registered_with_its_experts_as_tasks_that_see_their_rows_only(tmp_path, biased):
    torch.manual_seed(2)
    model = Mixed(biased).eval()
    examples = [torch.randn(rows, length, WIDTH) for rows, length in ((2, 5), (4, 8))]
    made = nodewire.register(model, examples, target_vram=100_000, out=tmp_path, name="mixed")
    tasks = [task.name for task in made.manifest.tasks]
    assert tasks[0] == "graph.0" and tasks[-1].startswith("graph.")
    parts = {name for name in tasks if name.startswith("experts.0.")}
    assert len(parts) >= 2 and all(task.memory_bytes <= 100_000 for task in made.manifest.tasks)
    sent = [edge for edge in made.manifest.edges if edge.target in parts]
    assert {edge.source for edge in sent} == {"graph.0"}
    assert all(SOME in edge.dims and {tensor.shape[0] for tensor in edge.tensors} == {SOME} for edge in sent)
    for x in (examples[1][:1], torch.randn(1, 1, WIDTH), torch.randn(3, 2, WIDTH)):
        with torch.no_grad():
            whole = model(x)
        out = Carved(made)({"x": x})["output"]
        assert (out - whole).abs().max() <= 5e-6
