"""A worker answers in order, keeps inside its caps, and its death harms nobody but its callers."""

import asyncio
import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from nodewire.errors import BadConfig, BadFrame, Busy, NotAllowed, NotFound, OverMemory, TooLarge, WorkerFailed
from nodewire.kind import Limits, Turn
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.worker import WorkerProcess
from nodewire.worker.sandbox.rights import private_bytes
from tests.sessions import Named

ENTRY = "worker_entry_for_tests"
MIB = 2**20
pytestmark = pytest.mark.asyncio(loop_scope="module")


def array(values: np.ndarray) -> Array:
    return Array(str(values.dtype), values.shape, values.tobytes())


def frame(*arrays: Array, **meta) -> Frame[Array]:
    return Frame("e.0", 1, arrays, meta)


async def start(folder: Path, memory_bytes: int = 128 * MIB, **options) -> WorkerProcess:
    (folder / "program").write_bytes(b"8")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    try:
        worker = Named(
            await WorkerProcess.start(
                ENTRY, Limits(memory_bytes=memory_bytes), readable=[folder], **{"arena_bytes": 4 * MIB, **options}
            )
        )
    finally:
        sys.path.pop(0)
    await worker.load("echo", "any", folder / "program", [folder / "program"])
    await worker.open("echo", "s", {})
    return worker


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("blobs")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(folder):
    worker = await start(folder)
    yield worker
    await worker.stop()


@pytest.mark.parametrize(
    "values",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(5, dtype=np.int64),
        np.array(7, dtype=np.int32),
        np.zeros((0, 3), dtype=np.float16),
        np.array([True, False]),
    ],
)
async def test_a_tensor_comes_back_as_it_went(worker, values):
    sent = array(values)
    [echoed] = await worker.receive("echo", "s", frame(sent))
    assert echoed == Frame("e.0", 1, (sent,), {"sum": 1})


async def test_bytes_that_are_no_bool_become_true(worker):
    [echoed] = await worker.receive("echo", "s", frame(Array("bool", (3,), b"\0\2\xff")))
    assert echoed.tensors[0].data == b"\0\1\1"


async def test_concurrent_calls_get_their_own_answers_in_order(worker):
    done = []

    async def call(n):
        [echoed] = await worker.receive("echo", "s", frame(array(np.full(MIB // 4, n, np.int64))))  # 2 fit the arena
        assert set(np.frombuffer(echoed.tensors[0].data, np.int64)) == {n}
        done.append(n)

    await asyncio.gather(*(call(n) for n in range(8)))
    assert done == list(range(8))


def long(ms: int) -> Frame[Array]:
    """Of a size that no other test's calls have: how long a call takes is guessed by those of its size."""
    return frame(array(np.zeros(20_000, np.uint8)), do="sleep", ms=ms)


async def flood(worker, done, sessions=4, **turn):
    """Calls of as many sessions of one customer, the first of which the worker is at when this returns."""
    for n in range(sessions):
        await worker.open("echo", f"flood{n}", {}, turn=Turn("flooding", **turn))

    async def call(n):
        await worker.receive("echo", f"flood{n}", long(40))
        done.append(f"flood{n}")

    calls = [asyncio.create_task(call(n)) for n in range(sessions)]
    while worker.waiting[0] != sessions - 1:
        await asyncio.sleep(0)
    return calls


async def closed(worker, sessions=4):
    await asyncio.gather(*(worker.close("echo", f"flood{n}") for n in range(sessions)))


async def test_another_customers_call_waits_for_the_one_that_is_computed_and_no_other(worker):
    await worker.open("echo", "step", {}, turn=Turn("stepping"))
    done = []
    calls = await flood(worker, done, remaining_us=10**9)
    await worker.receive("echo", "step", frame())
    assert len(done) == 1
    await asyncio.gather(*calls)
    await worker.close("echo", "step")
    await closed(worker)


async def test_within_a_session_the_longest_path_is_computed_first(worker, folder):
    for name, remaining_us in (("near", 10), ("far", 10**7)):
        await worker.load(name, "any", folder / "program", [])
        await worker.open(name, "s", {}, turn=Turn("c", remaining_us))
    done = []
    calls = await flood(worker, done, sessions=1)

    async def call(name):
        await worker.receive(name, "s", long(20))
        done.append(name)

    await asyncio.gather(*calls, call("near"), call("far"))
    assert done == ["flood0", "far", "near"]
    await closed(worker, sessions=1)


async def test_frames_go_to_the_worker_when_their_call_is_whole(worker):
    await worker.open("echo", "joined", {}, turn=Turn(together=frozenset({"a", "b"})))
    before = worker.figures.calls
    assert await worker.receive("echo", "joined", Frame("a", 0, (array(np.arange(3)),))) == []
    assert worker.figures.calls == before
    both = await worker.receive("echo", "joined", Frame("b", 0, (array(np.arange(2)),)))
    assert [(f.edge, f.tensors[0].shape) for f in both] == [("a", (3,)), ("b", (2,))]
    assert worker.figures.calls == before + 1
    await worker.close("echo", "joined")


async def test_a_session_that_is_closed_takes_its_waiting_calls_with_it(worker):
    done = []
    calls = await flood(worker, done)
    await closed(worker)
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert done == ["flood0"]
    assert [type(one) for one in outcomes] == [type(None), *[NotFound] * 3]
    assert worker.waiting == (0, 0)


async def test_calls_that_nobody_waits_for_leave_the_queue(worker):
    done = []
    calls = await flood(worker, done)
    for one in calls:
        one.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert worker.waiting == (0, 0)
    assert await worker.receive("echo", "s", frame()) != []
    await closed(worker)


async def test_more_output_than_the_arena_holds_flows_through_it(worker):
    frames = await worker.receive("echo", "s", frame(array(np.ones(MIB, np.uint8)), do="repeat", times=10))
    assert [f.seq for f in frames] == list(range(10))
    assert all(f.tensors[0].data == b"\1" * MIB for f in frames)


async def test_an_actor_may_keep_what_it_was_given(worker):
    await worker.receive("echo", "s", frame(array(np.full(4, 1, np.int32)), do="keep"))
    await worker.receive("echo", "s", frame(array(np.full(4, 2, np.int32))))
    [kept] = await worker.receive("echo", "s", frame(do="kept"))
    assert kept.tensors[0].data == np.full(4, 1, np.int32).tobytes()


async def test_a_frame_larger_than_the_arena_is_refused_on_either_side(worker):
    with pytest.raises(TooLarge):
        await worker.receive("echo", "s", frame(array(np.zeros(5 * MIB, np.uint8))))
    with pytest.raises(TooLarge):
        await worker.receive("echo", "s", frame(do="grow", bytes=5 * MIB))
    with pytest.raises(TooLarge):
        await worker.receive("echo", "s", frame(text="x" * MIB))


async def test_an_array_that_contradicts_itself_is_refused(worker):
    with pytest.raises(BadFrame, match="shape"):
        await worker.receive("echo", "s", frame(Array("float32", (2,), b"123")))


async def open_sessions(worker) -> int:
    for slots in range(1, 64):
        try:
            await worker.open("echo", "one more", {"slots": slots})
        except Busy:
            continue
        await worker.close("echo", "one more")
        return slots - 1
    raise AssertionError("too many to be counted")


@pytest.mark.parametrize("is_idle", [True, False])
async def test_an_opening_that_nobody_waits_for_any_more_leaves_no_session(worker, is_idle):
    before = await open_sessions(worker)
    call = None if is_idle else asyncio.create_task(worker.receive("echo", "s", long(100)))
    await asyncio.sleep(0)
    opening = asyncio.create_task(worker.open("echo", "given up", {"slots": 64}))
    await asyncio.sleep(0)  # the process has it, or the queue
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    if call is not None:
        await call
    assert await open_sessions(worker) == before


async def test_a_closing_that_nobody_waits_for_any_more_goes_on(worker):
    before = await open_sessions(worker)
    await worker.open("echo", "given up", {"slots": 64})
    call = asyncio.create_task(worker.receive("echo", "s", long(100)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(worker.close("echo", "given up"))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await call
    assert await open_sessions(worker) == before


async def test_a_session_that_is_closed_takes_no_frame(worker):
    for together in (frozenset(), frozenset({"e.0", "e.1"})):
        await worker.open("echo", "over", {}, turn=Turn(together=together))
        await worker.close("echo", "over")
        with pytest.raises(NotFound, match="closed"):
            await worker.receive("echo", "over", frame())
    assert worker._joined_bytes.nbytes == 0


async def test_typed_errors_cross_and_others_become_worker_failed(worker):
    with pytest.raises(Busy, match="no slot"):
        await worker.open("echo", "t", {"slots": 1})
    with pytest.raises(NotFound, match="task"):
        await worker.open("nothing", "s", {})
    with pytest.raises(WorkerFailed, match="ValueError: seven is not even"):
        await worker.receive("echo", "s", frame(do="raise"))
    with pytest.raises(WorkerFailed, match="complex64"):
        await worker.receive("echo", "s", frame(do="complex"))
    assert worker.alive


async def test_a_task_is_loaded_once_and_from_the_named_folders_only(worker, folder):
    with pytest.raises(NotAllowed, match="loaded"):
        await worker.load("echo", "any", folder / "program", [])
    with pytest.raises(NotAllowed, match="path"):
        await worker.load("other", "any", Path(__file__), [])
    [answer] = await worker.receive("echo", "s", frame(do="weights"))
    assert answer.meta["bytes"] == b"8"


async def test_threads_still_start(worker):
    await worker.receive("echo", "s", frame(do="start a thread"))


@pytest.mark.parametrize("size", [32 * MIB, 40_000, 1_000])
@pytest.mark.parametrize("how", ["hoard", "hoard python"])
async def test_the_memory_cap_holds_and_the_worker_lives_on(folder, how, size):
    worker = await start(folder)  # its own: small pieces leave holes in a heap that large pieces do not fit into
    try:
        with pytest.raises(OverMemory, match="echo"):
            await worker.receive("echo", "s", frame(do=how, bytes=size, times=192 * MIB // size))
        await worker.receive("echo", "s", frame(do="let go"))
        await worker.receive("echo", "s", frame(do=how, bytes=size, times=64 * MIB // size))
        await worker.receive("echo", "s", frame(do="let go"))
    finally:
        await worker.stop()


async def test_a_cap_below_the_reserve_is_not_filled_by_looking_for_it(folder):
    worker = await start(folder, memory_bytes=2 * MIB)
    try:
        for _ in range(20):
            await worker.receive("echo", "s", frame(array(np.zeros(64, np.float32))))
        assert private_bytes(worker.hello.pid) - worker.hello.baseline_bytes < 2 * MIB
    finally:
        await worker.stop()


async def test_weights_beyond_the_cap_are_over_memory(worker, folder):
    (folder / "large").write_bytes(b"%d" % (256 * MIB))
    with pytest.raises(OverMemory, match="large"):
        await worker.load("large", "greedy", folder / "large", [])


async def test_the_environment_holds_no_secrets(worker):
    [answer] = await worker.receive("echo", "s", frame(do="environment"))
    assert answer.meta["HOME"] == "/nonexistent"
    assert not {"PATH", "USER", "PYTEST_CURRENT_TEST"} & set(answer.meta)


async def test_a_cancelled_call_costs_only_its_answer(worker):
    waiting = asyncio.create_task(worker.receive("echo", "s", frame(array(np.zeros(MIB, np.uint8)))))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for _ in range(5):  # its slab is free again
        await worker.receive("echo", "s", frame(array(np.zeros(3 * MIB, np.uint8))))


async def test_what_it_prints_is_logged_without_control_characters(worker, caplog):
    await worker.receive("echo", "s", frame(do="print"))
    while not caplog.records:
        await asyncio.sleep(0.01)
    assert caplog.records[0].getMessage().endswith(": hello from the worker [31m")


async def probe(worker, what, path=None):
    [answer] = await worker.receive("echo", "s", frame(do="probe", what=what, path=path and str(path)))
    return answer.meta["refused"]


@pytest.mark.parametrize(
    "what",
    [
        "open_a_socket", "connect_a_socket_pair", "start_a_program", "replace_itself", "fork", "write_a_file",
        "append_to_a_file", "remove_a_file", "kill_the_daemon", "raise_its_memory_limit", "take_memory_off_the_books",
        "outlive_the_daemon",
    ],
)  # fmt: skip
async def test_seccomp_refuses_what_a_worker_has_no_use_for(worker, folder, what):
    if "seccomp" not in worker.hello.sandbox:
        pytest.skip(f"this kernel gives {worker.hello.sandbox}")
    assert await probe(worker, what, folder / "program") in (errno.EPERM, errno.EACCES)
    assert (folder / "program").read_bytes() == b"8"


async def test_landlock_hides_files_and_the_daemon(worker, folder):
    if "landlock" not in worker.hello.sandbox:
        pytest.skip(f"this kernel gives {worker.hello.sandbox}")
    assert await probe(worker, "read_a_file", folder / "program") is None
    for what, path in (
        ("read_a_file", Path(__file__)),
        ("read_a_file", "/etc/passwd"),
        ("read_the_daemons_memory", None),
        ("read_the_daemons_environment", None),
    ):
        assert await probe(worker, what, path) in (errno.EPERM, errno.EACCES), what


async def test_death_fails_all_callers_at_once_and_later_ones_too(folder):
    worker = await start(folder)
    dying = worker.receive("echo", "s", frame(do="die"))
    results = await asyncio.gather(dying, worker.receive("echo", "s", frame()), return_exceptions=True)
    assert [str(r) for r in results] == ["worker: ended with exit code 3"] * 2
    with pytest.raises(WorkerFailed):
        await worker.open("echo", "t", {})
    assert not worker.alive
    await worker.stop()


async def test_a_hung_call_costs_the_process_its_life(folder):
    worker = await start(folder, call_timeout_s=0.3)
    with pytest.raises(WorkerFailed, match=r"longer than 0\.3 s"):
        await worker.receive("echo", "s", frame(do="hang"))
    assert await worker.ended() == -9
    await worker.stop()


async def test_an_entry_that_is_not_there_is_named():
    with pytest.raises(BadConfig, match="no module nowhere_at_all"):
        await WorkerProcess.start("nowhere_at_all.module", Limits(memory_bytes=MIB))


async def test_it_dies_with_the_daemon(folder):
    daemon = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import asyncio, os\n"
        "from tests.worker.sandbox import test_worker_process as t\n"
        "from pathlib import Path\n"
        "async def main():\n"
        f"    worker = await t.start(Path({str(folder)!r}))\n"
        "    print(worker.hello.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n",
        env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await daemon.communicate()
    async with asyncio.timeout(60):
        while running(int(output)):
            await asyncio.sleep(0.02)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_task_that_is_unloaded_is_gone_and_may_be_loaded_again(tmp_path):
    worker = await start(tmp_path)
    try:
        await worker.unload("echo")
        with pytest.raises(NotFound, match="not loaded"):
            await worker.open("echo", "t", {})
        await worker.load("echo", "any", tmp_path / "program", [tmp_path / "program"])
        await worker.open("echo", "t", {})
    finally:
        await worker.stop()
