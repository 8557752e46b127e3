"""`python -m nodewire.chat.sandbox PARENT`: renders chat templates. Started by `renderer`, never by hand.

A template comes from a stranger. It is rendered by jinja2's immutable sandbox, which keeps it from Python's insides;
and each time in a new process, which should that fail has nothing either: no file can be opened, no socket made, no
process started (Landlock and seccomp, where the kernel has them), CPU time and memory are capped by the kernel, and
what an earlier request said was never in it.

On standard input a request, on standard output its answer: a length (u32) and JSON.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
import jinja2.debug  # jinja2 imports it when a template fails: no file can be read then
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nodewire.chat import MAX_PROMPT_CHARS, MAX_REQUEST_BYTES, PREFIX, WALL_S
from nodewire.errors import BadInput, NodewireError, TooLarge, WorkerFailed
from nodewire.worker.sandbox import landlock, rights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jinja2.parser import Parser

CPU_S = 0.1
"""For reading and rendering a template."""
MEMORY_BYTES = 96 * 2**20
"""Above an idle process."""
_MAX_ANSWER_BYTES = 8 * MAX_PROMPT_CHARS
_OVER_TIME = TooLarge("chat_template", f"took more than {CPU_S * 1000:.0f} ms of CPU time")
_DIED = WorkerFailed("chat_template", "the process that rendered it ended without an answer")


class _Generation(Extension):
    """`{% generation %}`: marks what the assistant says, for training. Here it is what stands in it."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _Dict:
    """`dict(...)` in a template, without the type's own attributes."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)


class _Namespace(jinja2.utils.Namespace):
    """Without names that Python means something by."""

    def __init__(*args: Any, **named: Any) -> None:
        for name in dict(*args[1:], **named):
            _check_name(name)
        jinja2.utils.Namespace.__init__(*args, **named)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace has no {name[:40]!r}")


def _refuse(message: object) -> NoReturn:
    """`raise_exception(...)`: the template does not take these messages."""
    raise BadInput("messages", f"the model's template refuses them: {str(message)[:200]}")


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Unlike jinja2's own, which is for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment() -> ImmutableSandboxedEnvironment:
    """What Hugging Face's templates are written for."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    made.globals["dict"] = _Dict()
    made.globals["namespace"] = _Namespace
    return made


def render(made: ImmutableSandboxedEnvironment, asked: Mapping[str, Any]) -> str:
    """The prompt. Raises BadInput, TooLarge."""
    try:
        template = made.from_string(asked["template"])
        parts: list[str] = []
        left = MAX_PROMPT_CHARS
        for part in template.generate(
            **asked["known"],
            messages=asked["messages"],
            tools=asked["tools"] or None,
            documents=None,
            add_generation_prompt=True,
        ):
            left -= len(part)
            if left < 0:
                raise TooLarge("messages", f"make a prompt of over {MAX_PROMPT_CHARS} characters")
            parts.append(part)
        text = "".join(parts)
        text.encode()  # a lone surrogate is no text, and no answer can hold it
        return text
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise BadInput("chat_template", f"{type(error).__name__}: {error}"[:200]) from error
    except RecursionError as error:
        raise TooLarge("chat_template", "nests too deeply") from error
    except MemoryError as error:
        raise TooLarge("chat_template", f"took more than {MEMORY_BYTES} bytes") from error


def main() -> None:
    rights.give_up_privileges(int(sys.argv[1]))
    made = environment()
    made.from_string("{{ strftime_now('%Y') }}{{ x | tojson }}").render(x=1)  # what is lazy in libraries, once
    memory_bytes = rights.private_bytes() + MEMORY_BYTES
    if landlock.available():
        landlock.restrict(read=(), names=(), devices=())
    while size := _exactly(0, PREFIX.size):
        (length,) = PREFIX.unpack(size)
        request = _exactly(0, min(length, MAX_REQUEST_BYTES))
        if request is None:
            return
        answer = _apart(made, request, memory_bytes)
        _write(1, PREFIX.pack(len(answer)) + answer)


def _apart(made: ImmutableSandboxedEnvironment, request: bytes, memory_bytes: int) -> bytes:
    """What a process of its own answers to the request, or what became of it."""
    reading, writing = os.pipe()
    own = os.getpid()
    child = os.fork()
    if child == 0:
        _answer(made, request, own, writing, memory_bytes)
    os.close(writing)
    until, parts, room = time.monotonic() + WALL_S, list[bytes](), _MAX_ANSWER_BYTES
    while room > 0 and select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(reading, 1 << 20)
        if not part:
            break
        parts.append(part)
        room -= len(part)
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reading)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0 and room > 0:
        return b"".join(parts)
    return _error(_OVER_TIME if -code in (signal.SIGPROF, signal.SIGXCPU, signal.SIGKILL) else _DIED)


def _answer(
    made: ImmutableSandboxedEnvironment, request: bytes, parent: int, writing: int, memory_bytes: int
) -> NoReturn:
    """In the new process: render and write."""
    code = 1
    try:
        asked = json.loads(request)
        rights.give_up_privileges(parent)
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        resource.setrlimit(resource.RLIMIT_CPU, (2, 2))
        rights.fence_system_calls("cpu")
        signal.setitimer(signal.ITIMER_PROF, CPU_S)  # by default it ends the process, whatever that is at
        try:
            said = json.dumps({"text": render(made, asked)}).encode()
        except NodewireError as error:
            said = _error(error)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _write(writing, said)
        code = 0
    finally:
        os._exit(code)


def _error(error: NodewireError) -> bytes:
    return json.dumps({"error": error.as_dict()}).encode()


def _exactly(descriptor: int, count: int) -> bytes | None:
    parts = b""
    while len(parts) < count:
        part = os.read(descriptor, count - len(parts))
        if not part:
            return None
        parts += part
    return parts


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    main()
