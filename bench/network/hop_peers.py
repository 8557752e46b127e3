"""Who echoes tensors to whom in `bench.network.hop`: for every way of carrying them a listener and a dialler.

    python -m bench.network.hop_peers ARM listen         says where, and echoes until standard input ends
    python -m bench.network.hop_peers ARM dial WHERE     reads {"bytes", "times", "warm"}, says how many seconds each
    echo took

A tensor is float32. It goes out of a torch tensor's memory and comes to be one: what a way needs for that, such as a
copy into its message, is its own cost. Listener and dialler are processes of one host.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import uvloop

from nodewire.errors import LinkLost
from nodewire.nostr.keys import Keys
from nodewire.protocol.tensors.frame import Array, Frame
from nodewire.wire import JobChannelSpec, JobMailbox, LinkPolicy, Node, Route
from nodewire.wire.shm import SameHost

MOST_BYTES = 64 * 2**20
HOST = "127.0.0.1"
_JOB = "cd" * 32
_LENGTH = struct.Struct("!Q")
Echo = Callable[[torch.Tensor], Awaitable[torch.Tensor]]
"""A tensor there and back."""


def view(tensor: torch.Tensor) -> memoryview:
    """A tensor's bytes, not copied."""
    return tensor.view(torch.uint8).numpy().data


def tensor(data: Any) -> torch.Tensor:
    """Bytes as a tensor, not copied."""
    return torch.frombuffer(data, dtype=torch.float32)


# The floor: plain blocking sockets.


def _send(connection: socket.socket, data: memoryview) -> None:
    connection.sendmsg([_LENGTH.pack(len(data))])
    connection.sendall(data)


def _receive(connection: socket.socket, memory: bytearray) -> memoryview:
    """The next message, in memory that is used again."""
    head = bytearray(_LENGTH.size)
    if connection.recv_into(head, _LENGTH.size, socket.MSG_WAITALL) < _LENGTH.size:
        raise ConnectionError
    (size,) = _LENGTH.unpack(head)
    whole, filled = memoryview(memory)[:size], 0
    while filled < size:
        n = connection.recv_into(whole[filled:])
        if not n:
            raise ConnectionError
        filled += n
    return whole


async def sockets_listen() -> None:
    with socket.create_server((HOST, 0)) as listening:
        _say(listening.getsockname()[1])
        connection, _ = listening.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        memory = bytearray(MOST_BYTES)
        with suppress(ConnectionError):
            while True:
                _send(connection, view(tensor(_receive(connection, memory))))


async def sockets_dial(where: int) -> Echo:
    connection = socket.create_connection((HOST, where))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = bytearray(MOST_BYTES)

    async def echo(given: torch.Tensor) -> torch.Tensor:
        _send(connection, view(given))
        return tensor(_receive(connection, memory))

    return echo


# The wire: nodes, TLS, frames, mailboxes.


def _mailbox(node: Node, there: str, back: str) -> JobMailbox:
    """Of the job with an edge there, and one back."""
    routes = {"there": Route(there, back), "back": Route(back, there)}
    return node.open_job(JobChannelSpec(_JOB, routes, limits=dict.fromkeys(routes, MOST_BYTES)))


def _frame(edge: str, seq: int, given: torch.Tensor) -> Frame[Array]:
    return Frame(edge, seq, (Array("float32", tuple(given.shape), view(given)),))


def _node(arm: str) -> Node:
    keys = Keys.generate()
    return Node(keys, policy=LinkPolicy(beside=SameHost(keys) if arm == "shm" else None))


async def wire_listen(arm: str = "wire") -> None:
    node, lines = _node(arm), await _lines()
    _say([node.public, await node.listen(HOST)])
    dialler = json.loads(await lines.readline())
    mailbox = _mailbox(node, dialler, node.public)
    with suppress(LinkLost):
        while True:
            frame = await mailbox.get()
            await mailbox.put(_frame("back", frame.seq, tensor(frame.tensors[0].data)))


async def wire_dial(where: Any, arm: str = "wire") -> Echo:
    public, address = where
    node = _node(arm)
    _say(node.public)
    link = await node.link(public, [address])
    if link.transport != {"wire": "tls"}.get(arm, arm):
        raise AssertionError(f"{arm}: the link goes over {link.transport}")
    mailbox, seq = _mailbox(node, node.public, public), 0

    async def echo(given: torch.Tensor) -> torch.Tensor:
        nonlocal seq
        await mailbox.put(_frame("there", seq, given))
        seq += 1
        return tensor((await mailbox.get()).tensors[0].data)

    return echo


# Others' ways, all of them encrypted.


def _certificate() -> tuple[bytes, bytes]:
    """A self-signed certificate for localhost, and its key."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM), private


async def websockets_listen() -> None:
    from websockets.asyncio.server import ServerConnection, serve
    from websockets.exceptions import ConnectionClosed

    async def serving(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):  # the dialler is killed when it has said what it is for
            async for message in connection:
                assert isinstance(message, bytes)
                await connection.send(view(tensor(bytearray(message))))

    certificate, key = _certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pem"
        path.write_bytes(key + certificate)
        context.load_cert_chain(path)
    async with serve(serving, HOST, 0, ssl=context, compression=None, max_size=None) as server:
        _say([next(iter(server.sockets)).getsockname()[1], certificate.decode()])
        await _ended()


async def websockets_dial(where: Any) -> Echo:
    from websockets.asyncio.client import connect

    port, certificate = where
    context = ssl.create_default_context(cadata=certificate)
    connection = await connect(
        f"wss://localhost:{port}", host=HOST, ssl=context, compression=None, max_size=None, ping_interval=None
    )

    async def echo(given: torch.Tensor) -> torch.Tensor:
        await connection.send(view(given))
        message = await connection.recv()
        assert isinstance(message, bytes)
        return tensor(bytearray(message))

    return echo


_GRPC = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_METHOD = "/bench/Echo"


async def grpc_listen() -> None:
    import grpc

    async def serving(message: bytes, context: Any) -> bytes:
        return bytes(view(tensor(bytearray(message))))

    certificate, key = _certificate()
    server = grpc.aio.server(options=_GRPC)
    handler = grpc.unary_unary_rpc_method_handler(serving)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", {"Echo": handler}),))
    port = server.add_secure_port(f"{HOST}:0", grpc.ssl_server_credentials([(key, certificate)]))
    await server.start()
    _say([port, certificate.decode()])
    await _ended()
    await server.stop(None)


async def grpc_dial(where: Any) -> Echo:
    import grpc

    port, certificate = where
    options = [*_GRPC, ("grpc.ssl_target_name_override", "localhost")]
    channel = grpc.aio.secure_channel(
        f"{HOST}:{port}", grpc.ssl_channel_credentials(certificate.encode()), options=options
    )
    call = channel.unary_unary(_METHOD)

    async def echo(given: torch.Tensor) -> torch.Tensor:
        return tensor(bytearray(await call(bytes(view(given)))))

    return echo


async def zmq_listen() -> None:
    import zmq
    import zmq.asyncio

    public, secret = zmq.curve_keypair()
    replying = zmq.asyncio.Context().socket(zmq.REP)
    replying.curve_server, replying.curve_secretkey, replying.curve_publickey = True, secret, public
    port = replying.bind_to_random_port(f"tcp://{HOST}")
    _say([port, public.decode()])
    while True:
        message = await replying.recv(copy=False)
        await replying.send(view(tensor(bytearray(message.buffer))), copy=False)


async def zmq_dial(where: Any) -> Echo:
    import zmq
    import zmq.asyncio

    port, server = where
    public, secret = zmq.curve_keypair()
    asking = zmq.asyncio.Context().socket(zmq.REQ)
    asking.curve_serverkey, asking.curve_publickey, asking.curve_secretkey = server.encode(), public, secret
    asking.connect(f"tcp://{HOST}:{port}")

    async def echo(given: torch.Tensor) -> torch.Tensor:
        await asking.send(view(given), copy=False)
        return tensor(bytearray((await asking.recv(copy=False)).buffer))

    return echo


LISTEN: dict[str, Callable[[], Awaitable[None]]] = {
    "sockets": sockets_listen,
    "wire": wire_listen,
    "shm": partial(wire_listen, "shm"),
    "websockets": websockets_listen,
    "grpc": grpc_listen,
    "zmq": zmq_listen,
}
DIAL: dict[str, Callable[[Any], Awaitable[Echo]]] = {
    "sockets": sockets_dial,
    "wire": wire_dial,
    "shm": partial(wire_dial, arm="shm"),
    "websockets": websockets_dial,
    "grpc": grpc_dial,
    "zmq": zmq_dial,
}


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


async def _lines() -> asyncio.StreamReader:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    return lines


async def _ended() -> None:
    lines = await _lines()
    while await lines.readline():
        pass


async def _dialling(arm: str, where: Any) -> None:
    echo, lines = await DIAL[arm](where), await _lines()
    while line := await lines.readline():
        asked = json.loads(line)
        given = torch.rand(asked["bytes"] // 4)
        for _ in range(asked["warm"]):
            if not torch.equal(await echo(given), given):
                raise AssertionError(f"{arm}: other numbers came back")
        took_s = []
        for _ in range(asked["times"]):
            began_s = time.perf_counter()
            await echo(given)
            took_s.append(time.perf_counter() - began_s)
        _say(took_s)


def main() -> None:
    torch.set_num_threads(1)
    arm, role = sys.argv[1:3]
    work = LISTEN[arm]() if role == "listen" else _dialling(arm, json.loads(sys.argv[3]))
    run = asyncio.run if arm in ("sockets", "grpc") else uvloop.run  # gRPC polls in a loop of its own
    run(work)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
    os._exit(0)  # what others' libraries still hold is of no interest
