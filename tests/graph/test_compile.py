"""A task compiled ahead answers as the interpreter does, in a locked-in worker too, and is believed only then."""

import logging
import shutil

import pytest
import torch
from safetensors.torch import save_file

from nodewire.errors import BadInput, BadTask, NodewireError, NotAllowed, NotFound, Unsupported
from nodewire.graph import compile, entry
from nodewire.graph.program.format import Input, Node, Output, Program, Weight
from nodewire.graph.program.interpreter import Interpreter
from nodewire.graph.program.whitelist import Ref
from nodewire.kind import Limits
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker import WorkerProcess
from tests.sessions import Named

F32 = torch.float32


def program(scale=1.5):
    """A lookup, a linear layer and a softmax, over [b] ids."""
    return Program(
        dims={"b": 8},
        volume=8,
        inputs=(Input("x", F32, ("b", 4), "in"), Input("ids", torch.int64, ("b",), "in")),
        weights=(Weight("table", F32, (10, 4)), Weight("w", F32, (4, 4))),
        nodes=(
            Node("found", "aten.embedding.default", (Ref("table"), Ref("ids"))),
            Node("sum", "aten.add.Tensor", (Ref("x"), Ref("found"))),
            Node("turned", "aten.linear.default", (Ref("sum"), Ref("w"))),
            Node("scaled", "aten.mul.Scalar", (Ref("turned"), scale)),
            Node("soft", "aten.softmax.int", (Ref("scaled"), -1)),
        ),
        outputs=(Output("out", "soft", F32, ("b", 4), "result"),),
    )


def weights():
    drawn = torch.Generator().manual_seed(4)
    return {"table": torch.randn(10, 4, generator=drawn), "w": torch.randn(4, 4, generator=drawn)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("no C++ compiler")
    made = tmp_path_factory.mktemp("compiled")
    made.chmod(0o755)
    path = compile.build(program().encode(), made)
    assert path.parent == made
    return made


def test_a_library_says_what_the_interpreter_says_at_sizes_of_one_and_above(folder):
    task = program()
    library = compile.find(task.encode(), task, weights(), folder, 1)
    interpreter = Interpreter(task, weights())
    for rows in (1, 2, 8):
        inputs = {"x": torch.randn(rows, 4), "ids": torch.arange(rows)}
        assert library.admits({"b": rows})
        ours, theirs = library(inputs, {"b": rows})["soft"], interpreter(inputs, {"b": rows})["soft"]
        assert torch.allclose(ours, theirs, atol=1e-6)
    assert not library.admits({"b": 0})


def test_a_library_refuses_an_index_out_of_range_and_the_process_goes_on(folder):
    task = program()
    library = compile.find(task.encode(), task, weights(), folder, 1)
    for bad in (10, -1, -10, -11, 2**31 - 1, 2**40):
        with pytest.raises(BadTask, match=r"^program: compiled"):
            library({"x": torch.zeros(2, 4), "ids": torch.tensor([0, bad])}, {"b": 2})
    assert library({"x": torch.zeros(2, 4), "ids": torch.tensor([0, 9])}, {"b": 2})["soft"].shape == (2, 4)


def test_a_library_counts_no_index_from_the_end(folder, tmp_path):
    """TorchInductor does, where the interpreter of who verifies refuses: an honest provider would be judged for it."""
    task = Program(
        dims={"b": 8},
        volume=8,
        inputs=(Input("at", torch.int64, ("b",), "in"),),
        weights=(Weight("table", F32, (10, 4)),),
        nodes=(Node("picked", "aten.index_select.default", (Ref("table"), 0, Ref("at"))),),
        outputs=(Output("out", "picked", F32, ("b", 4), "result"),),
    )
    tmp_path.chmod(0o755)
    compile.build(task.encode(), tmp_path)
    table = torch.randn(10, 4)
    library = compile.find(task.encode(), task, {"table": table}, tmp_path, 1)
    for bad in (-1, -10, 10):
        with pytest.raises(BadTask, match="compiled"):
            library({"at": torch.tensor([0, bad])}, {"b": 2})
    assert torch.equal(library({"at": torch.tensor([0, 9])}, {"b": 2})["picked"], table[[0, 9]])


def test_what_a_library_refuses_is_left_to_the_interpreter(folder, tmp_path, monkeypatch):
    save_file(weights(), tmp_path / "weights")
    limits = Limits(2**20, compiled=str(folder))
    loaded = entry.load("graph", program().encode(), [tmp_path / "weights"], limits)
    loaded.open("s", {})
    x = torch.zeros(2, 4)
    for seq, bad in enumerate((10, -1)):
        with pytest.raises(BadInput, match=f"^in: found: index {bad} of 10 rows"):
            loaded.receive("s", Frame("in", seq, (x, torch.tensor([0, bad])), {}))

    def exhausted(self, inputs, dims):
        raise BadTask("program", "compiled: bad_alloc")

    monkeypatch.setattr(compile.CompiledProgram, "__call__", exhausted)
    (frame,) = loaded.receive("s", Frame("in", 9, (x, torch.tensor([0, 9])), {}))
    due = Interpreter(program(), weights())({"x": x, "ids": torch.tensor([0, 9])}, {"b": 2})["soft"]
    assert torch.equal(frame.tensors[0], due)


def test_a_library_is_found_by_all_that_it_depends_on(folder):
    task, other = program(), program(scale=2.5)
    for data, threads in ((other.encode(), 1), (task.encode(), 2)):
        with pytest.raises(NotFound):
            compile.find(data, task, weights(), folder, threads)


def test_a_library_that_says_something_else_is_not_believed(folder, tmp_path):
    other = program(scale=-3.0)
    (made,) = folder.glob("*.so")
    (tmp_path / f"{compile.key(other.encode(), 1)}.so").write_bytes(made.read_bytes())
    tmp_path.chmod(0o755)
    with pytest.raises(BadTask, match="something else"):
        compile.find(other.encode(), other, weights(), tmp_path, 1)


def test_a_folder_that_others_may_write_is_not_looked_into(folder, tmp_path):
    (made,) = folder.glob("*.so")
    (tmp_path / made.name).write_bytes(made.read_bytes())
    tmp_path.chmod(0o777)
    with pytest.raises(NotAllowed, match="others"):
        compile.find(program().encode(), program(), weights(), tmp_path, 1)


def test_without_a_library_the_task_is_interpreted_and_a_note_says_so(tmp_path, caplog):
    save_file(weights(), tmp_path / "weights")
    with caplog.at_level(logging.WARNING):
        loaded = entry.load(
            "graph", program().encode(), [tmp_path / "weights"], Limits(2**20, compiled=str(tmp_path / "none"))
        )
    assert "a task is interpreted" in caplog.text
    loaded.open("s", {})
    (frame,) = loaded.receive("s", Frame("in", 0, (torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64)), {}))
    assert frame.tensors[0].shape == (1, 4)


def test_without_a_compiler_the_builder_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.raises(Unsupported, match="cannot be compiled"):
        compile.build(program(scale=7.0).encode(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_two_builders_of_one_program_leave_one_whole_library(folder, tmp_path, monkeypatch):
    (made,) = folder.glob("*.so")
    data = program().encode()

    def library(program, scratch):
        with pytest.raises(NotFound):  # a worker that looks meanwhile finds none, and no half of one
            compile.find(data, program, weights(), tmp_path, 1)
        (scratch / "task.so").write_bytes(made.read_bytes()[:1_000])
        if not list(tmp_path.glob("*.so")):
            monkeypatch.setattr(compile, "_library", whole)
            compile.build(data, tmp_path)
        return whole(program, scratch)

    def whole(program, scratch):
        (scratch / "task.so").write_bytes(made.read_bytes())
        return scratch / "task.so"

    tmp_path.chmod(0o755)
    monkeypatch.setattr(compile, "_library", library)
    found = compile.build(data, tmp_path)
    assert list(tmp_path.iterdir()) == [found]
    assert found.read_bytes() == made.read_bytes()


def test_what_a_worker_would_not_load_is_not_compiled(tmp_path):
    with pytest.raises(NodewireError):
        compile.build(b"\x80", tmp_path)


async def test_a_locked_in_worker_runs_the_library(folder, tmp_path):
    (tmp_path / "program").write_bytes(program().encode())
    save_file(weights(), tmp_path / "weights")
    worker = Named(
        await WorkerProcess.start("kinds.k8843_worker", Limits(32 * 2**20, compiled=str(folder)), readable=[tmp_path])
    )
    try:
        await worker.load("t", "graph", tmp_path / "program", [tmp_path / "weights"])
        await worker.open("t", "s", {})
        x, ids = torch.zeros(2, 4), torch.tensor([3, 9])
        arrays = tuple(
            Array(name, tuple(t.shape), memoryview(t.numpy().tobytes())) for name, t in (("float32", x), ("int64", ids))
        )
        (frame,) = await worker.receive("t", "s", Frame("in", 0, arrays, {}))
        got = torch.frombuffer(bytearray(frame.tensors[0].data), dtype=F32).reshape(2, 4)
        due = Interpreter(program(), weights())({"x": x, "ids": ids}, {"b": 2})["soft"]
        assert torch.allclose(got, due, atol=1e-6)
        assert next(folder.glob("*.so")).name in _mapped(worker.hello.pid)
    finally:
        await worker.stop()


def _mapped(pid):
    with open(f"/proc/{pid}/maps") as file:
        return file.read()
