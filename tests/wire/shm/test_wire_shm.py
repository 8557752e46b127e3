"""Links between processes of one host: how they are found, who may be at the other end, and what a peer cannot do."""

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import sys
import threading

import pytest

from nodewire.errors import BadInput, BadPeer, LinkLost
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Frame
from nodewire.wire import JobChannelSpec, Patience, Route
from nodewire.wire.framing import frames
from nodewire.wire.shm import SameHost, discovery, peer_credentials
from nodewire.wire.shm import mapping as memory
from nodewire.wire.shm.mapping import LINK_BYTES, RING_BYTES
from tests.wire.shm_net import Hand, closed, connected, descriptors, name_of
from tests.wire.wire_net import QUICK, array, data_frame, job_id, refused_as, until

pytestmark = pytest.mark.parametrize("net", ["shm"], indirect=True)
JOB = job_id("job")
NOWHERE = "127.0.0.1:1"


def echo_routes(a, b):
    return {"there": Route(a.public, b.public), "back": Route(b.public, a.public)}


# Who finds whom.


async def test_nodes_of_one_host_find_each_other_by_key_alone(net):
    a, b = await net.node(), await net.node()
    link = await a.link(b.public, [NOWHERE])
    await until(lambda: a.public in b.peers)
    assert link.transport == b.peers[a.public].transport == "shm"
    assert link.peer == b.public and b.peers[a.public].peer == a.public
    assert link.congestion == ""
    await until(lambda: link.rtt_us is not None)


async def test_whoever_is_elsewhere_is_reached_over_tls(net):
    a, b = await net.node(), await net.node(beside=None)
    assert (await a.link(b.public, [net.addresses[b.public]])).transport == "tls"


async def test_who_does_not_listen_any_more_leaves_no_name(net):
    a, b = await net.node(), await net.node()
    path = name_of(net, b.public)
    assert stat.S_ISSOCK(path.lstat().st_mode)
    await b.close()
    assert not path.exists()
    await refused_as(LinkLost, NOWHERE, a.link(b.public, [NOWHERE]))


async def test_a_name_that_the_dead_left_is_no_hindrance_and_taken_by_the_next(net):
    a, keys = await net.node(), Keys.generate()
    path = name_of(net, keys.public)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    elsewhere = await net.node(keys, beside=None)
    link = await a.link(keys.public, [net.addresses[keys.public]])
    assert link.transport == "tls"
    await elsewhere.close()
    await until(lambda: not a.peers)
    await net.node(keys)
    assert (await a.link(keys.public, [NOWHERE])).transport == "shm"


async def test_names_of_the_dead_are_swept_when_a_node_listens_and_no_others(net):
    alive = await net.node()
    public = [Keys.generate().public for _ in range(4)]
    dead = [name_of(net, public[0]), name_of(net, public[1]).with_suffix(".4711")]
    elsewhere = net.folder / f"1-{public[2][:32]}"  # of another network namespace
    others = [name_of(net, public[3]), net.folder / "agent.1", net.folder / f"x-{public[3][:32]}"]
    for path in (*dead, elsewhere, *others[1:]):
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    others[0].write_text("no socket")
    young = name_of(net, Keys.generate().public)
    for path in (*dead, elsewhere, *others, name_of(net, alive.public)):
        os.utime(path, (0, 0))
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(young))
        late = await net.node()
        assert not any(path.exists() for path in (*dead, elsewhere))
        assert all(path.exists() for path in (*others, young, name_of(net, alive.public)))
    assert (await late.link(alive.public, [NOWHERE])).transport == "shm"


async def test_of_two_nodes_with_one_key_the_older_does_not_take_the_youngers_name_with_it(net):
    a, keys = await net.node(), Keys.generate()
    older, younger = await net.node(keys), await net.node(keys)
    await older.close()
    assert (await a.link(keys.public, [NOWHERE])).transport == "shm"
    assert a.public in younger.peers


async def test_who_listens_and_is_silent_does_not_keep_us_from_tls(net):
    a, keys = await net.node(patience=Patience(again_s=0.1)), Keys.generate()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(name_of(net, keys.public)))
        silent.listen()
        elsewhere = await net.node(keys, beside=None)
        link = await a.link(keys.public, [net.addresses[elsewhere.public]])
    assert link.transport == "tls"


@pytest.mark.parametrize("stranger", ["../{name}", "/{name}", "{name}\0", ""])
async def test_nobodys_words_name_a_path(net, stranger):
    """Neither a public key nor an address leads to a socket that is not named by a key."""
    a = await net.node()
    with socket.socket(socket.AF_UNIX) as other:
        path = net.folder / "other"
        other.bind(str(path))
        other.listen()
        other.setblocking(False)
        public = stranger.format(name=path)
        assert not a._links._beside.knows(public)
        with pytest.raises((BadInput, LinkLost)):
            await a.link(public, [NOWHERE])
        for address in (f"shm:{path}", f"unix:{path}", str(path)):
            await refused_as(BadInput, "address", a.link(Keys.generate().public, [address]))
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.mark.parametrize("spoilt", ["open to others", "a link", "a file"])
async def test_a_folder_that_others_may_enter_is_not_used(net, spoilt):
    a, b = await net.node(), await net.node()
    match spoilt:
        case "open to others":
            net.folder.chmod(0o750)
        case _:
            aside = net.folder.with_name(net.folder.name + "-aside")
            net.folder.rename(aside)
            net.folder.symlink_to(aside) if spoilt == "a link" else net.folder.touch(0o600)
    try:
        with pytest.raises(PermissionError):
            await SameHost(Keys.generate(), net.folder).listen(lambda arrival: arrival.refuse())
        assert (await a.link(b.public, [net.addresses[b.public]])).transport == "tls"
        late = await net.node()
        assert (await a.link(late.public, [net.addresses[late.public]])).transport == "tls"
    finally:
        if spoilt != "open to others":
            net.folder.unlink()
            aside.rename(net.folder)


async def test_there_is_a_cap_on_what_links_share(net, monkeypatch):
    monkeypatch.setattr(discovery, "MAX_BYTES", 2 * LINK_BYTES)
    a = await net.node()
    others = [await net.node() for _ in range(3)]
    links = [await a.link(b.public, [net.addresses[b.public]]) for b in others]
    assert [link.transport for link in links] == ["shm", "shm", "tls"]
    links[0].abort(LinkLost("link", "cut"))
    await until(lambda: a._links._beside._free == LINK_BYTES)
    last = await net.node()
    assert (await a.link(last.public, [net.addresses[last.public]])).transport == "shm"


async def test_what_a_link_took_is_given_back(net):
    a, b = await net.node(), await net.node()
    before = descriptors()
    for _ in range(3):
        await net.link(a, b)
        a.peers[b.public].end(LinkLost("link", "cut"))
        await until(lambda: not a.peers and not b.peers)
    await until(lambda: a._links._beside._free == b._links._beside._free == discovery.MAX_BYTES)
    assert descriptors() == before


# Who is at the other end.


async def test_who_sits_at_anothers_name_is_found_out_and_told_nothing(net):
    a, b, squatter = await net.node(), Keys.generate(), await net.node()
    name_of(net, squatter.public).rename(name_of(net, b.public))
    link = asyncio.Protocol()
    await refused_as(BadPeer, "signature", a._links._beside.dial(b.public, link))
    real = await net.node(b, beside=None)
    assert (await a.link(b.public, [net.addresses[real.public]])).transport == "tls"
    assert a.public not in squatter.peers


RELAY = """
import os, socket, sys, threading
def relay(listening, far):
    near, _ = socket.socket(fileno=listening).accept()
    far = socket.socket(fileno=far)
    data, fds, _, _ = socket.recv_fds(near, 1_024, 4)
    socket.send_fds(far, [data], fds)
    pumping = threading.Thread(target=pump, args=(near, far))
    pumping.start()
    pump(far, near)
def own(at, to):
    listening, far = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    listening.bind(at)
    listening.listen()
    far.connect(to)
    return listening.detach(), far.detach()
def pump(one, other):
    try:
        while data := one.recv(4_096):
            other.sendall(data)
    except OSError:
        pass
    for end in (one, other):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
"""


@contextlib.asynccontextmanager
async def relayed(net, b, *, inherited=False):
    """A process at b's name, which passes on all that comes to where b really listens.

    With `inherited` its sockets are such as b's own process, and a's, have made: those that died can leave them.
    """
    name, away = name_of(net, b.public), net.folder / "away"
    name.rename(away)
    if inherited:
        far, listening = connected(net, b, at=away), socket.socket(socket.AF_UNIX)
        listening.bind(str(name))
        listening.listen()
        far.setblocking(True)
        given = (listening.detach(), far.detach())
        code = "print(flush=True); relay(*map(int, sys.argv[1:]))"
    else:
        given = ()
        code = "ends = own(*sys.argv[1:]); print(flush=True); relay(*ends)"
    relay = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RELAY + code, *map(str, given or (name, away)),
        stdout=asyncio.subprocess.PIPE, pass_fds=given,
    )  # fmt: skip
    for descriptor in given:
        os.close(descriptor)
    try:
        await relay.stdout.readline()
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            relay.kill()
        await relay.wait()


@pytest.mark.parametrize("inherited", [False, True])
async def test_proofs_that_another_process_passes_on_are_worth_nothing(net, inherited):
    a, b = await net.node(), await net.node()
    async with relayed(net, b, inherited=inherited):
        await refused_as(BadPeer, "signature", a._links._beside.dial(b.public, asyncio.Protocol()))
        assert (await a.link(b.public, [net.addresses[b.public]])).transport == "tls"


@pytest.mark.parametrize("inherited", [False, True])
async def test_they_would_be_if_the_kernel_did_not_say_whose_process_it_is(net, monkeypatch, inherited):
    """The control: the relay above is a faithful one."""
    a, b = await net.node(), await net.node()
    monkeypatch.setattr(
        peer_credentials, "sender", lambda credentials: peer_credentials.Sender(os.getpid(), os.geteuid())
    )
    async with relayed(net, b, inherited=inherited):
        assert (await a.link(b.public, [NOWHERE])).transport == "shm"


async def test_a_process_of_another_user_is_refused_on_both_sides(net, monkeypatch):
    a, b = await net.node(), await net.node()
    own, other = (peer_credentials.Sender(os.getpid(), uid) for uid in (os.geteuid(), os.geteuid() + 1))
    for senders, code, field in (
        ([other], LinkLost, "shared memory"),  # the listener hangs up
        ([own, other], BadPeer, "user"),
    ):
        said = iter(senders)
        monkeypatch.setattr(peer_credentials, "sender", lambda credentials, said=said: next(said))
        await refused_as(code, field, a._links._beside.dial(b.public, asyncio.Protocol()))
    assert not b.peers


async def test_without_the_kernels_word_who_answers_there_is_no_link(net):
    b = await net.node()
    with pytest.raises(BadPeer) as refused:
        await Hand.greet(net, b, watched=False)
    assert refused.value.field == "user"


async def test_a_proof_for_another_channel_is_refused(net):
    s, keys = await net.node(), Keys.generate()
    one, other = await Hand.greet(net, s, keys), await Hand.greet(net, s, keys)
    one.prove(other.greeted.bound)
    document = await one.document()
    assert (document["t"], document["error"]["field"]) == ("bye", "cert")
    other.prove(other.greeted.bound)
    assert (await other.document())["t"] == "welcome"
    assert list(s.peers) == [keys.public]
    one.close(), other.close()


async def test_strangers_have_little_time_and_few_bytes(net):
    s = await net.node(patience=QUICK)
    silent, mute, loud = connected(net, s), await Hand.greet(net, s), await Hand.greet(net, s)
    loud.send(frames.filler(5_000))
    assert (await loud.document())["error"]["code"] == "too-large"
    await closed(silent)
    await mute.is_closed()
    await until(lambda: s._links._beside._free == discovery.MAX_BYTES)
    assert len(s._links.strangers) == 0


# Memory that a peer hands over.


def sealed(size: int, seals: int, flags: int = 0) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def huge() -> int:
    """Pages that may be taken away again by a hole, if nobody has more."""
    return sealed(LINK_BYTES, memory.fixed(), os.MFD_HUGETLB)


def file() -> int:
    descriptor = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(descriptor, LINK_BYTES)
    return descriptor


MEMORIES = {
    "none": list,
    "two": lambda: [memory.create(), memory.create()],
    "many": lambda: [memory.create() for _ in range(50)],
    "not sealed": lambda: [sealed(LINK_BYTES, 0)],
    "may shrink": lambda: [sealed(LINK_BYTES, memory.fixed() & ~fcntl.F_SEAL_SHRINK)],
    "too small": lambda: [sealed(LINK_BYTES // 2, memory.fixed())],
    "too large": lambda: [sealed(2 * LINK_BYTES, memory.fixed())],
    "not to be written": lambda: [sealed(LINK_BYTES, memory.fixed() | fcntl.F_SEAL_WRITE)],
    "huge pages": lambda: [huge()],
    "a file": lambda: [file()],
    "a pipe": lambda: list(os.pipe()[:1]),
}


@pytest.mark.parametrize("case", MEMORIES)
async def test_memory_that_could_be_taken_away_is_refused(net, case):
    a, b = await net.node(), await net.node()
    before = descriptors()
    given = MEMORIES[case]()
    try:
        connection = connected(net, b)
        socket.send_fds(connection, [peer_credentials.hello(os.urandom(peer_credentials.NONCE_BYTES))], given)
        await closed(connection)
        connection.close()
    finally:
        for descriptor in given:
            os.close(descriptor)
    await until(lambda: b._links._beside._free == discovery.MAX_BYTES)
    if case != "a pipe":
        assert descriptors() == before
    await net.link(a, b)


@pytest.mark.parametrize("hello", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(peer_credentials.HELLO_BYTES)])
async def test_what_is_no_greeting_is_hung_up_on(net, hello):
    b = await net.node()
    connection, descriptor = connected(net, b), memory.create()
    if hello:
        socket.send_fds(connection, [hello], [descriptor])
    else:
        connection.shutdown(socket.SHUT_WR)
    await closed(connection)
    os.close(descriptor)
    await until(lambda: b._links._beside._free == discovery.MAX_BYTES)


async def test_nobody_can_shrink_what_both_have_mapped(net):
    descriptor = memory.create()
    for size in (0, LINK_BYTES // 2, 2 * LINK_BYTES):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    os.close(descriptor)


# Peers that break the rules.

LIES = {
    "more than fits": lambda m: (m.out.written + RING_BYTES + 1, 0, "written"),
    "writing taken back": lambda m: (0, 0, "written"),
    "taken before it was written": lambda m: (m.out.written, 2**40, "taken"),
    "beyond all": lambda m: (2**64 - 1, 2**64 - 1, "written"),
}


@pytest.mark.parametrize("case", LIES)
async def test_who_miscounts_loses_its_link_and_nobody_else_does(net, case):
    b, a = await net.node(), await net.node()
    await net.link(a, b)
    hand = await Hand.proven(net, b)
    link = b.peers[hand.keys.public]
    written, taken, field = LIES[case](hand.greeted.mapping)
    hand.say(written, taken)
    await link.over.wait()
    assert isinstance(link.error, LinkLost) and f"{field}: " in str(link.error)
    assert a.public in b.peers and await b.peers[a.public].is_alive()
    hand.close()


async def test_half_a_record_ends_the_link(net):
    b = await net.node()
    hand = await Hand.proven(net, b)
    link = b.peers[hand.keys.public]
    hand.connection.send(b"half")
    await link.over.wait()
    assert "record: " in str(link.error)
    hand.close()


async def test_what_was_delivered_does_not_change_when_the_peer_writes_over_it(net):
    b, keys = await net.node(), Keys.generate()
    hand = await Hand.proven(net, b, keys)
    job = b.open_job(JobChannelSpec(JOB, {"e": Route(keys.public, b.public)}))
    data = os.urandom(100_000)
    hand.send(data_frame(JOB, "e", 0, data))
    frame = await job.get()
    ring = hand.greeted.mapping._whole
    ring[:] = b"\xff" * len(ring)
    assert bytes(frame.tensors[0].data) == data
    hand.close()


async def test_a_peer_that_scribbles_all_the_time_spoils_its_own_frames_alone(net):
    """Whatever it writes while we read: what was admitted is delivered, or its link ends; others' frames stay whole."""
    a, b, keys = await net.node(), await net.node(), Keys.generate()
    await net.link(a, b)
    mine, theirs = (node.open_job(JobChannelSpec(JOB, echo_routes(a, b))) for node in (a, b))
    hand = await Hand.proven(net, b, keys)
    job = b.open_job(JobChannelSpec(job_id("spoilt"), {"e": Route(keys.public, b.public)}))
    link, stop, unforeseen = b.peers[keys.public], threading.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unforeseen.append(context))

    def scribble() -> None:
        memory = hand.greeted.mapping._whole
        while not stop.is_set():
            for at in range(0, RING_BYTES, 512):
                memory[at : at + 64] = os.urandom(64)

    thread = threading.Thread(target=scribble)
    thread.start()
    try:
        for seq in range(100):
            with contextlib.suppress(OSError, AssertionError):
                hand.send(data_frame(job_id("spoilt"), "e", seq, bytes(5_000)))
            data = os.urandom(10_000)
            await mine.put(Frame("there", seq, (array(data),)))
            assert bytes((await theirs.get()).tensors[0].data) == data
            while job._queue:
                assert (await job.get()).tensors[0].shape == (5_000,)
    finally:
        stop.set()
        thread.join()
    assert link.error is None or link.error.code in ("bad-frame", "bad-version", "too-large", "link-lost")
    assert a.public in b.peers
    assert not unforeseen
    hand.close()


async def test_a_peer_that_never_reads_is_given_up(net):
    b, keys = await net.node(), Keys.generate()
    hand = await Hand.proven(net, b, keys)
    link = b.peers[keys.public]

    def shout():
        for _ in range(10_000):
            link.send_control({"t": "x", "b": bytes(60_000)})

    with pytest.raises(LinkLost, match="does not read"):
        shout()
    assert not b.peers
    hand.close()


async def test_a_peer_that_leaves_in_the_middle_has_its_last_words_heard(net):
    b, keys = await net.node(), Keys.generate()
    hand = await Hand.proven(net, b, keys)
    job = b.open_job(JobChannelSpec(JOB, {"e": Route(keys.public, b.public)}))
    hand.send(data_frame(JOB, "e", 0, b"whole"))
    hand.send(data_frame(JOB, "e", 1, b"ha", size=1_000))
    hand.close()
    assert bytes((await job.get()).tensors[0].data) == b"whole"
    with pytest.raises(LinkLost):
        await job.get()
