"""A worker entry whose engines do, inside the capped process, what the tests ask for."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import signal
import socket
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import torch

from nodewire.errors import Busy
from nodewire.protocol.tensors.frame import Frame

PROBES = {}
ctypes.util.find_library("dl")  # as a CUDA build of torch does while it is imported


def probe(function):
    PROBES[function.__name__] = function
    return function


@probe
def open_a_socket(_):
    socket.socket(socket.AF_INET, socket.SOCK_STREAM)


@probe
def connect_a_socket_pair(_):
    socket.socketpair()


@probe
def start_a_program(_):
    subprocess.run(["/bin/true"], check=True)


@probe
def replace_itself(_):
    os.execv("/bin/true", ["true"])


@probe
def fork(_):
    if os.fork() == 0:
        os._exit(0)


@probe
def write_a_file(path):
    Path(path).write_text("x")


@probe
def append_to_a_file(path):
    with open(path, "a"):
        pass


@probe
def remove_a_file(path):
    os.unlink(path)


@probe
def kill_the_daemon(_):
    os.kill(os.getppid(), signal.SIGTERM)


@probe
def read_the_daemons_memory(_):
    with open(f"/proc/{os.getppid()}/mem", "rb"):
        pass


@probe
def read_the_daemons_environment(_):
    Path(f"/proc/{os.getppid()}/environ").read_bytes()


@probe
def read_a_file(path):
    Path(path).read_bytes()


@probe
def read_content(path):
    if not Path(path).read_bytes():
        raise OSError(errno.ENODATA, "empty")


@probe
def raise_its_memory_limit(_):
    import resource

    try:
        resource.setrlimit(resource.RLIMIT_DATA, (2**60, 2**60))
    except ValueError as error:  # the module's word for EPERM
        raise PermissionError(errno.EPERM, "setrlimit") from error


@probe
def take_memory_off_the_books(_):
    import mmap

    mmap.mmap(-1, 2**20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)


@probe
def outlive_the_daemon(_):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(1, 0, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


class Echo:
    """Sends back what it gets, and does what `meta` says on the way."""

    def __init__(self, weights):
        self.weights = weights
        self.open_sessions = set()
        self.kept = {}
        self.hoard = []

    def open(self, session, params):
        if len(self.open_sessions) >= params.get("slots", 8):
            raise Busy("session", "no slot")
        self.open_sessions.add(session)

    def close(self, session):
        self.open_sessions.discard(session)

    def receive(self, session, frame):
        self._misbehave(frame.meta)
        frames = self._answer(session, frame)
        return [Frame(frame.edge, frame.seq, frame.tensors, {"sum": len(frame.tensors)})] if frames is None else frames

    def _misbehave(self, meta):
        match meta.get("do"):
            case "raise":
                raise ValueError("seven is not even")
            case "die":
                os._exit(3)
            case "abort":
                os.abort()
            case "hang":
                time.sleep(3600)
            case "sleep":
                time.sleep(meta["ms"] / 1_000)
            case "hoard" | "hoard python" as what:
                make = bytearray if what == "hoard python" else partial(torch.ones, dtype=torch.uint8)
                for _ in range(meta.get("times", 1)):
                    self.hoard.append(make(int(meta["bytes"])))
            case "let go":
                self.hoard.clear()
            case "print":
                print("hello from the worker\x1b[31m", flush=True)
            case "start a thread":
                thread = threading.Thread(target=lambda: None)
                thread.start()
                thread.join()

    def _answer(self, session, frame):
        """Frames other than an echo; None: the echo."""
        meta = frame.meta
        match meta.get("do"):
            case "repeat":
                return [Frame(frame.edge, n, frame.tensors) for n in range(int(meta["times"]))]
            case "grow":
                return [Frame(frame.edge, 0, (torch.zeros(int(meta["bytes"]), dtype=torch.uint8),))]
            case "complex":
                return [Frame(frame.edge, 0, (torch.zeros(2, dtype=torch.complex64),))]
            case "keep":
                self.kept[session] = frame.tensors[0]
            case "kept":
                return [Frame(frame.edge, 0, (self.kept[session],))]
            case "dtypes":
                return [Frame("said", 0, (), {"dtypes": ", ".join(str(t.dtype) for t in frame.tensors)})]
            case "environment":
                return [Frame(frame.edge, 0, (), dict(os.environ))]
            case "weights":
                return [Frame(frame.edge, 0, (), {"bytes": b"".join(p.read_bytes() for p in self.weights)})]
            case "probe":
                return [Frame(frame.edge, 0, (), {"refused": refusal(meta)})]
        return None


def refusal(meta):
    """The number of the error that a probe meets; None: it is let through."""
    try:
        PROBES[meta["what"]](meta.get("path"))
    except OSError as error:
        return error.errno
    return None


def load(engine, program, weights, limits):
    if engine == "greedy":
        return torch.zeros(int(program), dtype=torch.uint8)
    return Echo(list(weights))
