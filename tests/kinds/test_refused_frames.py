"""What a provider says of frames that it cannot compute: one code for a neighbour's, its own for a customer's fault."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from kinds.k8843 import KIND
from nodewire.errors import BadInput, NodewireError, TooLarge, first_of
from nodewire.graph import entry
from nodewire.graph.program.format import Input, Node, Output, Program
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Job, Limits
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.protocol.model.manifest import CUSTOMER, BlobRef, Edge, Manifest, Task
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire.evidence.spool import Spool
from nodewire.wire.job.generation_tape import GenerationTape
from tests.kinds.inprocess import Direct, Fed, to_arrays
from tests.kinds.llama import load, make_llama

F32, I64 = torch.float32, torch.int64
REQUEST = "ab" * 32


class Free:
    """A desk that lets everything be computed which can follow what came before."""

    def __init__(self, manifest, path):
        self._tape = GenerationTape(Spool(path, 10**8), REQUEST, manifest, 1)

    async def admit(self, chunk, units=1):
        return

    async def completed(self, chunk, units, end):
        return

    def produced(self, task, chunk, frame):
        return

    def received(self, task, frame):
        if frame.edge in self._tape.inner:
            self._tape.record_frame(frame.edge, frame)


async def answer(manifest, actors, task: str, *frames, params=None) -> NodewireError:
    """What ends a job at the node that has `task`, when these frames come."""
    arriving: asyncio.Queue = asyncio.Queue()
    for one in frames:
        arriving.put_nowait(to_arrays(one))

    async def put(made):
        return

    mailbox = Fed(arriving.get, put)
    with pytest.raises((NodewireError, ExceptionGroup)) as caught:
        async with asyncio.timeout(60):
            with TemporaryDirectory() as path:
                desk, job = Free(manifest, Path(path)), Job(REQUEST, manifest, (task,), params or {})
                await KIND.serve(job, mailbox, Direct(actors), desk)
    error = first_of(caught.value)
    assert isinstance(error, NodewireError), error
    return error


# A decoder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = make_llama(tmp_path_factory.mktemp("llama"))
    made = split_decoder(folder, 1_100_000, tmp_path_factory.mktemp("split"), slots=1, name="tiny")
    return made.manifest, load(made)


def prompt(*tensors: torch.Tensor) -> Frame:
    return Frame("prompt", 0, tensors, {"chunk": 0})


def text(words: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(words), dtype=torch.uint8)


def hidden(edge: str, value: float = 0.1, width: int = 32, **meta) -> Frame:
    return Frame(edge, 0, (torch.full((1, 1, width), value),), {"pos": 0, "chunk": 0, **meta})


@pytest.mark.parametrize(
    "frame",
    [
        hidden("hidden.0", float("nan")),
        hidden("hidden.0", float("inf")),
        hidden("hidden.0", 3e38),
        hidden("hidden.0", width=31),
        hidden("hidden.0", pos=7),
        hidden("hidden.0", chunk=1),
        Frame("hidden.0", 0, (torch.zeros(1, 161, 32),), {"pos": 0, "chunk": 0}),
    ],
)
async def test_a_stage_says_bad_frame_and_the_edge_whatever_is_wrong(decoder, frame):
    error = await answer(*decoder, "stage.0", frame)
    assert (error.code, error.field) == ("bad-frame", "hidden.0")


@pytest.mark.parametrize("frame", [hidden("return", float("nan"), pos=2), hidden("return", pos=0)])
async def test_a_driver_says_so_of_the_last_stage(decoder, frame):
    given = prompt(torch.tensor([1, 2, 3]))
    error = await answer(*decoder, "driver", given, frame)
    assert (error.code, error.field) == ("bad-frame", "return")
    early = Frame("return", 1, frame.tensors, {"pos": 3, "chunk": 1})
    error = await answer(*decoder, "driver", given, early)
    assert (error.code, error.field) == ("bad-frame", "return")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (prompt(torch.ones(160, dtype=I64)), "too-large"),
        (prompt(text(b"\xff\xfe")), "bad-input"),
        (prompt(torch.tensor([300])), "bad-input"),
        (prompt(torch.ones(0, dtype=I64)), "bad-input"),
        (Frame("prompt", 0, (), {"chunk": 0}), "bad-input"),
    ],
)
async def test_a_customers_prompt_keeps_its_own_code(decoder, frame, code):
    assert (await answer(*decoder, "driver", frame)).code == code


async def test_a_prompt_of_another_dtype_names_no_edge_that_is_a_neighbours(decoder):
    error = await answer(*decoder, "driver", prompt(torch.ones(3)))
    assert (error.code, error.field) == ("bad-frame", "prompt")


async def test_bad_parameters_keep_their_own_code(decoder):
    error = await answer(*decoder, "driver", prompt(torch.tensor([1])), params={"temperature": -1.0})
    assert (error.code, error.field) == ("bad-input", "temperature")


# A graph: `join` picks rows of `left` by the customer's `order`; there is one of its `ids` for each row of `right`.


def joining() -> Program:
    return Program(
        dims={"n": 8, "m": 8, "t": 8},
        volume=8**3 // 2,
        slots=1,
        inputs=(
            Input("a", F32, ("n", 2), "left"),
            Input("b", F32, ("m", 2), "right"),
            Input("order", I64, ("t",), "order"),
            Input("ids", I64, ("m",), "ids", 4),
        ),
        weights=(),
        nodes=(
            Node("rows", "aten.index_select.default", (Ref("a"), 0, Ref("order"))),
            Node("twice", "aten.mul.Scalar", (Ref("b"), 2.0)),
        ),
        outputs=(Output("rows", "rows", F32, ("t", 2), "out"), Output("twice", "twice", F32, ("m", 2), "out")),
    )


@pytest.fixture
def graph():
    program = joining()
    blob = BlobRef(sha256="ab" * 32, bytes=1)
    tasks = tuple(
        Task(name=name, engine="graph", program=blob, weights=(), memory_bytes=1, slots=1, flops=1)
        for name in ("left", "right", "join")
    )
    ends = {
        "in": (CUSTOMER, "left"),
        "in2": (CUSTOMER, "right"),
        "left": ("left", "join"),
        "right": ("right", "join"),
        "order": (CUSTOMER, "join"),
        "ids": (CUSTOMER, "join"),
        "out": ("join", CUSTOMER),
    }
    edges = tuple(Edge(name=n, source=s, target=t, tensors=(), bytes_per_position=1) for n, (s, t) in ends.items())
    manifest = Manifest(name="graph", mode="run", tasks=tasks, edges=edges)
    return manifest, {"join": entry.load("graph", program.encode(), [], Limits(10**8))}


def call(**changes) -> list[Frame]:
    given = {
        "left": torch.zeros(3, 2),
        "right": torch.zeros(2, 2),
        "order": torch.tensor([0, 2]),
        "ids": torch.tensor([0, 3]),
        **changes,
    }
    return [Frame(edge, 0, (tensor,), {"chunk": 0, "end": True}) for edge, tensor in given.items()]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"left": torch.zeros(2, 2)}, "left"),  # too few rows for the order: of the two it is the neighbour's
        ({"order": torch.tensor([9, 0])}, "left"),  # which is no different to who computes it
        ({"left": torch.zeros(3, 3)}, "left"),
        ({"right": torch.zeros(2, 2, dtype=I64)}, "right"),
        ({"right": torch.zeros(3, 2)}, "right"),  # of two that disagree
        ({"left": torch.zeros(9, 2)}, "left"),
        ({"left": torch.zeros(8, 2), "right": torch.zeros(8, 2), "ids": torch.zeros(8, dtype=I64),
          "order": torch.zeros(8, dtype=I64)}, "frames"),
    ],
)  # fmt: skip
async def test_a_graph_names_the_neighbours_edge_that_may_be_to_blame(graph, changes, field):
    error = await answer(*graph, "join", *call(**changes))
    assert (error.code, error.field) == ("bad-frame", field)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"ids": torch.tensor([4, 0])}, BadInput),
        ({"ids": torch.tensor([-1, 0])}, BadInput),
        ({"order": torch.zeros(9, dtype=I64)}, TooLarge),
        ({"order": torch.tensor([0.0])}, BadInput),
    ],
)
async def test_what_follows_from_the_customers_frames_alone_keeps_its_code(graph, changes, kind):
    error = await answer(*graph, "join", *call(**changes))
    assert type(error) is kind


async def test_edges_that_do_not_agree_about_the_end_are_nobodys_alone(graph):
    frames = call()
    frames[0] = Frame("left", 0, frames[0].tensors, {"chunk": 0, "end": False})
    error = await answer(*graph, "join", *frames)
    assert (error.code, error.field) == ("bad-frame", "frames")
