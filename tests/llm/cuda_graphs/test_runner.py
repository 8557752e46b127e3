"""Steps that were captured say what steps say that were not, in every family, wherever rows stand; what cannot be
captured is not, and is said."""

import logging
from dataclasses import replace
from random import Random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bench.tasks.tiny_decoders import FAMILIES
from nodewire.config import WorkerConfig
from nodewire.llm import entry
from nodewire.llm.checkpoint.loader import open_weights
from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.cuda_graphs import runner as graphs_room
from nodewire.llm.cuda_graphs.capture import CudaGraphs
from nodewire.llm.cuda_graphs.fx_capture import FxCapture
from nodewire.llm.cuda_graphs.runner import graph_maker, hidden_around
from nodewire.llm.kv import static_buffers
from nodewire.llm.kv.batch_view import Branches, Chain, together
from nodewire.llm.kv.sequence_cache import Lanes
from nodewire.llm.kv.speculative_tree import Tree
from nodewire.llm.layers.experts import AllAtOnce, Mixture
from nodewire.llm.layers.layers import Arithmetic, Layers
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.programs.programs import DriverProgram, StageProgram
from nodewire.llm.quant.checkpoint_writer import quantize
from nodewire.llm.speculation.draft_model import Draft
from nodewire.llm.stage import Stage
from nodewire.llm.tokens.tokenizer import Tokenizer
from tests.llm.llm_lanes import TOKENS, Plain, assert_close, frame
from tests.llm.llm_models import PLAIN, ROOMY, Ring, make_model

CONTEXT = 192
MIXES = {"num_experts", "num_local_experts", "n_routed_experts"}


class Sides:
    """One model in two stages, `captured` and `plain`, that are told the same."""

    def __init__(self, folder, out, *, slots=2, room_bytes=2**30, capture=None, device="cpu", dtype=None, kv=None):
        options = DecoderOptions(context=CONTEXT, dtype=dtype, kv=kv)
        made = split_decoder(folder, 2**30, out, slots=slots, options=options)
        _, task = made.manifest.tasks
        program = StageProgram.unpack(made.blobs[task.program.sha256].read_bytes())
        where, how = made.blobs[task.weights[0].sha256], graph_maker(capture or FxCapture(), room_bytes)
        self.captured, self.plain = (
            Stage(program, open_weights([where], program.tensors), torch.device(device), one) for one in (how, None)
        )

    @property
    def graphs(self):
        return self.captured._graphs

    def open(self, *sessions, **params):
        for stage in (self.captured, self.plain):
            for session in sessions:
                stage.open(session, params)

    def close(self, session):
        for stage in (self.captured, self.plain):
            stage.close(session)

    def say(self, *calls):
        """The answers to frames of several sessions, of both sides."""
        kind = self.plain.program.dtype
        told = [(session, (replace(of, tensors=(of.tensors[0].to(getattr(torch, kind)),)),)) for session, of in calls]
        both = [stage.receive_together(told) for stage in (self.captured, self.plain)]
        for made, expected in zip(*both, strict=True):
            assert made[0].meta == expected[0].meta
        return [tuple(side[n][0].tensors[0][0] for side in both) for n in range(len(calls))]


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """A shape is captured when it is met for the first time: later ones are replays."""
    monkeypatch.setattr(graphs_room, "MET", 1)


@pytest.mark.parametrize("name", FAMILIES)
def test_replays_say_what_every_family_says(made, name, tmp_path):
    """Prompts and steps, trees, what is kept, rewinds, beyond a window and within it, of two sessions in one step."""
    sides, chance = Sides(made(name), tmp_path), Random(name)
    head = LocalDecoder(made(name)).vocabulary
    sides.open("a", "b")
    sessions = {session: Plain(sides.plain, CONTEXT) for session in "ab"}

    @torch.inference_mode()
    def check(*calls):
        for found, expected in sides.say(*calls):
            assert_close(found, expected)
            for row, other in zip(found, expected, strict=True):
                logits = head.logits(other[None, None])
                first, second = logits.topk(2).values
                assert head.logits(row[None, None]).argmax() == logits.argmax() or first - second < 1e-5

    for session, of in sessions.items():
        check((session, of.chain([chance.randrange(50) for _ in range(64)])[0]))
    a, b = sessions["a"], sessions["b"]
    check(("a", a.branches([1, 2, 3, 4, 5], [-1, -1, 0, 0, 2])[0]), ("b", b.chain([3])[0]))
    check(("a", a.branches([6, 7, 8], [0, 1, -1], keep=a.keep(2))[0]), ("b", b.chain([4, 9])[0]))
    before = sides.graphs.replays
    for _ in range(10):
        check(
            ("a", a.chain([chance.randrange(50)])[0]),
            ("b", b.chain([chance.randrange(50)], chance.randint(60, min(70, len(b.run))))[0]),
        )
    assert not sides.graphs.off
    assert sides.graphs.replays >= before + 9


def test_a_long_random_walk_of_several_lanes_says_the_same_tokens(plain, tmp_path):
    """Sessions come and go, lanes are moved to where others were, pages are added to what is read."""
    chance, sides, head = Random(5), Sides(plain, tmp_path, slots=3), LocalDecoder(plain).vocabulary
    open_ = {}
    with torch.inference_mode():
        for step in range(400):
            if (len(open_) < 5 and chance.random() < 0.1) or not open_:
                positions = chance.choice((64, 128))
                session = f"s{step}"
                if sum(one.positions for one in open_.values()) + positions <= 3 * CONTEXT:
                    sides.open(session, positions=positions)
                    open_[session] = Plain(sides.plain, positions)
            if len(open_) > 1 and chance.random() < 0.08:
                session = chance.choice(list(open_))
                sides.close(session)
                del open_[session]
            some = chance.sample(list(open_), chance.randint(1, len(open_)))
            calls = [(session, open_[session].at_random(chance)[0]) for session in some]
            for found, expected in sides.say(*calls):
                assert_close(found, expected)
                for row, other in zip(found, expected, strict=True):
                    assert head.logits(row[None, None]).argmax() == head.logits(other[None, None]).argmax()
    assert not sides.graphs.off
    assert sides.graphs.replays > 300
    assert len(sides.graphs) <= graphs_room.MOST


@pytest.mark.parametrize(("scheme", "name"), [("int8", "llama, yarn"), ("int4", "qwen3"), ("w8a8", "mistral")])
def test_quantized_layers_are_captured_too(made, scheme, name, tmp_path):
    """Bit by bit what the same operations say that nobody took down; about what a step of other operations says, for
    bfloat16 has 8 bits, and what they round apart activations of 8 bits round further."""
    quantize(made(name), tmp_path / "model", scheme)
    sides, again = (
        Sides(tmp_path / "model", tmp_path / str(n), capture=how)
        for n, how in enumerate((FxCapture(), lambda step: step))
    )
    assert sides.plain.program.dtype == "bfloat16"
    for one in (sides, again):
        one.open("a", "b")
        for session in "ab":
            one.say((session, frame([n % 50 for n in range(64)], 0)))
    for pos in range(64, 84):
        calls = ("a", frame([pos % 50], pos)), ("b", frame([(7 * pos) % 50], pos))
        for (found, expected), (same, _) in zip(sides.say(*calls), again.say(*calls), strict=True):
            assert torch.equal(found, same)
            assert (found - expected).float().norm() <= 0.1 * expected.float().norm()
    assert sides.graphs.replays >= 19 and not sides.graphs.off


def test_experts_in_blocks_are_not_captured_and_that_is_said(made, tmp_path, caplog):
    quantize(made("mixtral"), tmp_path / "model", "int8")
    with caplog.at_level(logging.WARNING, "nodewire.llm"):
        sides = Sides(tmp_path / "model", tmp_path / "out")
    assert "decode steps are not captured: experts in blocks are chosen by the host" in caplog.text
    sides.open("a")
    for pos in range(4):
        ((found, expected),) = sides.say(("a", frame([pos], pos)))
        assert torch.equal(found, expected)
    assert len(sides.graphs) == 0


def _broken(step):
    raise RuntimeError("operation not permitted when stream is capturing")


def test_what_cannot_be_captured_is_computed_as_ever_and_said_once(plain, tmp_path, caplog):
    sides = Sides(plain, tmp_path, capture=_broken)
    sides.open("a")
    with caplog.at_level(logging.WARNING, "nodewire.llm"):
        for pos in range(5):
            ((found, expected),) = sides.say(("a", frame([pos], pos)))
            assert torch.equal(found, expected)
    assert [one.getMessage() for one in caplog.records] == [
        "decode steps are not captured: RuntimeError: operation not permitted when stream is capturing"
    ]


ASKING = {
    "a number": lambda x: x.mul_(float(x.sum())),
    "a list": lambda x: x.add_(x.tolist()[0]),
    "places": lambda x: x.add_(len(x.nonzero())),
    "rows by a mask": lambda x: x.add_(x[x > 0].sum()),
}


@pytest.mark.parametrize("what", ASKING)
def test_a_step_that_asks_for_what_the_device_knows_is_refused(what):
    x = torch.ones(4)
    with pytest.raises(RuntimeError):
        FxCapture()(lambda: ASKING[what](x))


def test_a_replay_computes_what_stands_in_the_buffers_then():
    x, y = torch.ones(4), torch.zeros(4)
    replay = FxCapture()(lambda: y.copy_(x * 2 + y))
    y.zero_()
    x.copy_(torch.arange(4))
    replay()
    replay()
    assert y.tolist() == [0, 4, 8, 12]


def test_captured_steps_are_few_and_the_one_used_longest_ago_goes(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(graphs_room, "MOST", 2)
    sides = Sides(plain, tmp_path)
    sides.open("a")
    pos = 0
    for rows in (1, 2, 1, 3, 2, 1):  # 3 takes the place of 2, which takes that of 1 ...
        ((found, expected),) = sides.say(("a", frame(list(range(rows)), pos)))
        assert_close(found, expected)
        assert len(sides.graphs) <= 2
        pos += rows
    assert sides.graphs.replays == 1


def test_shapes_are_captured_after_a_few_meetings(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(graphs_room, "MET", 3)
    sides = Sides(plain, tmp_path)
    sides.open("a")
    captured = []
    for pos in range(5):
        sides.say(("a", frame([1], pos)))
        captured.append((len(sides.graphs), sides.graphs.replays))
    assert captured == [(0, 0), (0, 0), (1, 0), (1, 1), (1, 2)]


def test_prompts_and_what_would_take_too_much_are_computed_as_ever(plain, tmp_path):
    sides = Sides(plain, tmp_path / "roomy")
    sides.open("a")
    ((found, expected),) = sides.say(("a", frame([n % 50 for n in range(128)], 0)))
    assert torch.equal(found, expected) and len(sides.graphs) == 0
    cramped = Sides(plain, tmp_path / "cramped", room_bytes=1_000)
    cramped.open("a")
    ((found, expected),) = cramped.say(("a", frame([1], 0)))
    assert torch.equal(found, expected) and len(cramped.graphs) == 0 and not cramped.graphs.off


def test_what_another_session_left_is_not_read(plain, tmp_path):
    """Not even under a mask: nought times no number is none."""
    sides = Sides(plain, tmp_path)
    sides.open("a", "b")
    for stage in (sides.captured, sides.plain):
        for cells in stage._lanes.cells:
            cells[:, :, : stage._lanes.beyond] = torch.nan
    for pos in range(70):
        for found, expected in sides.say(("a", frame([pos % 50], pos)), ("b", frame([1, 2], 2 * pos))):
            assert bool(found.isfinite().all())
            assert_close(found, expected)
    assert sides.graphs.replays > 60


def test_a_draft_models_steps_are_captured(plain, tmp_path):
    """Ids in, logits out; texts that go on, and texts that differ from what came before."""
    made = split_decoder(plain, 2**30, tmp_path, slots=2, options=DecoderOptions(context=CONTEXT))
    program = DriverProgram.unpack(made.blobs[made.manifest.tasks[0].program.sha256].read_bytes())
    spoken = (plain / "tokenizer.json").read_bytes()
    draft, cpu, chance = Draft(plain, program, spoken), torch.device("cpu"), Random(2)
    sides = [draft.load(Tokenizer(spoken), cpu, how)._model for how in (graph_maker(FxCapture()), None)]
    texts = {session: [chance.randrange(1, 290) for _ in range(10)] for session in "ab"}
    for _ in range(120):
        session = chance.choice("ab")
        text = texts[session]
        found, expected = (model.after(list(text), session) for model in sides)
        assert (found - expected).abs().max() <= 1e-4
        assert int(found.argmax()) == int(expected.argmax())
        if chance.random() < 0.2:
            del text[max(1, len(text) - 4) :]
        text += [int(expected.argmax())] if chance.random() < 0.7 else [chance.randrange(1, 290) for _ in range(3)]
        del text[CONTEXT - 5 :]
    (graphs,) = {id(one._decoder._graphs): one._decoder._graphs for one in sides[0]._held}.values()
    assert graphs.replays > 60 and not graphs.off


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("name", [name for name, (_, how) in FAMILIES.items() if MIXES & how.keys()])
@torch.inference_mode()
def test_experts_all_at_once_say_what_they_say_one_by_one(made, name, rows):
    """Copied side by side, and all of them."""
    layers = LocalDecoder(made(name))._layers.layers
    (mixture, *_) = [layer.mlp for layer in layers if isinstance(layer.mlp, Mixture)]
    x = torch.randn(rows, layers[0].attention_norm.weight.shape[0], generator=torch.Generator().manual_seed(rows))
    chosen, weights = mixture.route(x)
    once, expected = AllAtOnce(mixture), mixture.forward(x)
    assert_close(once.forward(x), expected)
    for way in (once._chosen, once._every):
        assert_close(mixture.with_shared(way(x, chosen, weights), x), expected)


def test_an_experts_number_that_is_none_stays_with_who_chose_it(made):
    layers = LocalDecoder(made("mixtral"))._layers.layers
    mixture = layers[0].mlp
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(3))
    chosen, weights = mixture.route(x)
    (other,) = [one for one in range(4) if one not in chosen[0].tolist()][:1]
    mixture.stacked[0][other] = torch.nan
    try:
        made_ = AllAtOnce(mixture)._every(x[:1], chosen[:1], weights[:1])
    finally:
        mixture.stacked[0][other] = 0
    assert bool(made_.isfinite().all())


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices but copies, as a GPU does; a number may come from anywhere."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        met = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.ndim}
        assert len(met) < 2 or func.overloadpacket in (torch.ops.aten.copy_, torch.ops.aten._to_copy), func
        return func(*args, **(kwargs or {}))


def test_mixed_devices_are_seen():
    with OneDevice(), pytest.raises(AssertionError, match="add"):
        torch.ones(2, device="meta") + torch.ones(2)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_operation_mixes_devices(made, name):
    """Layers, lanes and what rows build on, beside a device that has no numbers."""
    whole = LocalDecoder(made(name))
    config, device = whole.config, torch.device("meta")
    with OneDevice(), torch.inference_mode():
        layers = Layers(
            config, 0, config.num_hidden_layers, positions=CONTEXT, block=64,
            arithmetic=Arithmetic(torch.bfloat16, device), fill=lambda name, target, first=0: None,
        )  # fmt: skip
        lanes = Lanes(config, config.num_hidden_layers, 2, CONTEXT, torch.bfloat16, device, beyond=True)
        lane, other = lanes.open(), lanes.open()
        lane.length = 70
        tree = Tree().grown([-1, 0, 0], 70)
        spans = [static_buffers.branches(lane, tree, 0, 3), static_buffers.chain(other, 5, 2)]
        board = static_buffers.Grid(lanes, static_buffers.shape_of(spans))
        board.set(spans)
        board.begin()
        x = hidden_around(config.hidden_size, torch.bfloat16, device).inputs(len(board.positions))
        made_ = layers.captured(x, board)
        assert (made_.device.type, made_.shape) == ("meta", x.shape)
        if config.experts is not None:
            return  # as ever, their experts are chosen by the host
        for past in (Chain(lane, 0, 64), Chain(lane, 70, 1), Branches(lane, tree, 0, 3)):
            x = torch.zeros(len(past.positions), config.hidden_size, dtype=torch.bfloat16, device=device)
            assert layers.run(x, past).device.type == "meta"
        x = torch.zeros(4, config.hidden_size, dtype=torch.bfloat16, device=device)
        assert layers.run(x, together([Branches(lane, tree, 0, 3), Chain(other, 5, 1)])).device.type == "meta"


def test_steps_are_captured_on_a_gpu_unless_the_operator_says_not():
    said = WorkerConfig.model_validate({"graphs": False, "device": "cuda"}).limits
    assert WorkerConfig().limits.graphs and not said.graphs
    assert entry._graphing(torch.device("cuda"), said, 0) is None
    assert entry._graphing(torch.device("cpu"), replace(said, graphs=True), 0) is None


def test_a_cpu_captures_nothing(registration):
    ring = Ring(registration, ROOMY)
    assert all(getattr(one, "_graphs", None) is None for one in ring.actors.values())


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU of CUDA's")


@cuda
@pytest.mark.parametrize("name", FAMILIES)
def test_cuda_graphs_say_what_steps_say(made, name, tmp_path):
    device = torch.device("cuda")
    sides = Sides(made(name), tmp_path, capture=CudaGraphs(device), device="cuda")
    sides.open("a", "b")
    sessions = {session: Plain(sides.plain, CONTEXT) for session in "ab"}
    chance = Random(name)
    for _ in range(60):
        for found, expected in sides.say(*((one, of.at_random(chance)[0]) for one, of in sessions.items())):
            assert not len(expected) or (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert not sides.graphs.off and sides.graphs.replays > 20


@cuda
def test_a_ring_on_a_gpu_says_what_one_on_a_cpu_says(registration):
    prompts = ["The quick brown fox", [5, 9, 11], "a" * 90]
    rings = [Ring(registration, replace(ROOMY, **how)) for how in ({}, {"device": "cuda"})]
    rings.append(Ring(registration, replace(ROOMY, device="cuda", graphs=False)))
    for prompt in prompts:
        for params in ({}, {"lookahead": 8}, {"temperature": 1.0, "repetition_penalty": 1.2}):
            made = [ring.generate(prompt, max_tokens=40, **params)[0] for ring in rings]
            assert made[0] == made[1] == made[2]
        text = prompt if isinstance(prompt, str) else "ab"
        assert rings[0].generate(text, max_tokens=9, history=[5, 6]) == rings[1].generate(
            text, max_tokens=9, history=[5, 6]
        )


@cuda
def test_cuda_graphs_take_no_more_memory_than_was_said(tmp_path):
    folder = make_model(tmp_path / "m", PLAIN, torch.float32)
    sides = Sides(folder, tmp_path / "out", capture=CudaGraphs(torch.device("cuda")), device="cuda")
    sides.open("a", "b")
    before = torch.cuda.memory_reserved()
    for pos in range(0, 120, 2):
        sides.say(("a", frame([1, 2], pos)), ("b", frame([1], pos // 2)))
    assert torch.cuda.memory_reserved() - before <= graphs_room.CAPTURED_BYTES // 4
    assert TOKENS.device.type == "cpu"
