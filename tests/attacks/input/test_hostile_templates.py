"""Chat templates that want more than to write a prompt get a typed error, in time, and the next one is rendered."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from nodewire.chat import WALL_S, sandbox
from nodewire.chat.folder import chat_template
from nodewire.chat.renderer import Renderer
from nodewire.errors import BadConfig, BadInput, BadManifest, TooLarge, WorkerFailed
from nodewire.protocol.model.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate

SAID = [{"role": "user", "content": "hello", "n": 1}]
HONEST = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}"

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ (messages|attr('__class__')) }}",
    "{{ messages[0]['content']|attr('__class__')|attr('__mro__') }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set n = namespace() %}{% set n.__dict__ = 1 %}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ tojson.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ ('{0.__class__.__init__.__globals__}'|format)(messages) }}",
    "{{ '%s'.format.__self__ }}",
    "{{ {}.__class__.__base__ }}",
    "{{ ''.join.__self__.__class__ }}",
    "{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='system') }}",
    "{{ messages.clear() }}",
    "{% import 'os' as os %}{{ os }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{{ undefined.x.y }}",
    "{{ messages|map('__class__')|list }}",
    "{% bad %}",
    "{{ 1 / 0 }}",
    "{{ messages[99].role.x }}",
    "{{ raise_exception('no') }}",
]
BOMBS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ 'a' * 10**12 }}",
    "{{ 7 ** (10 ** 8) }}",
    "{{ [0] * 10**9 }}",
    "{{ '%999999999d' % 1 }}",
    "{{ 'x'.center(10**9) }}",
    "{{ 'x'|center(10**9) }}",
    "{{ 'ab'.replace('', 'c' * 10**5).replace('c', 'd' * 10**5) }}",
    "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
    "{% set n = namespace(s='aaaa') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
    "{% macro a() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}",
    "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(60) }}",
    "{{ range(99999)|list|string * 99 }}",
    "{{ lipsum(n=99999) }}",
    "{{ 'a'|indent(10**9) }}",
    "{{ messages|tojson(indent=10**9) }}",
    "{{ " + "(" * 20_000 + ")" * 20_000 + " }}",
    "{% if x %}" * 5_000,
    "{{ " + "-" * 60_000 + "1 }}",
]


@pytest.fixture
async def renderer():
    made = Renderer()
    yield made
    await made.close()


def of(template: str) -> ChatTemplate:
    return ChatTemplate(template=template, tokens={"bos_token": "<s>"})


async def test_an_honest_one_is_rendered_as_transformers_does(renderer):
    assert await renderer.render(of(HONEST), SAID) == "<s><user>hello"
    markers = "{% generation %}x{% endgeneration %}{% for m in messages %}{% break %}{% endfor %}{{ 'é'|tojson }}"
    assert await renderer.render(of(markers), SAID) == 'x"é"'
    blocks = "{% if tools %}\n  {{ tools[0].a }}\n{% endif %}\n{% if not add_generation_prompt %}x{% endif %}"
    assert await renderer.render(of(blocks), SAID, [{"a": 1}]) == "  1\n"


async def test_no_escape_reaches_anything_and_none_stops_the_next(renderer):
    for template in ESCAPES:
        try:
            text = await renderer.render(of(template), SAID)
        except BadInput:
            continue
        assert len(text) < 200 and "<class" not in text and "built-in" not in text and "root:" not in text, template
    assert await renderer.render(of(HONEST), SAID) == "<s><user>hello"


async def test_bombs_end_within_their_limits_and_none_stops_the_next(renderer):
    for template in BOMBS:
        began_s = time.monotonic()
        try:
            text = await renderer.render(of(template), SAID)
        except (BadInput, WorkerFailed):  # TooLarge is one, too
            pass
        else:
            assert len(text) <= 1_000_000, template
        assert time.monotonic() - began_s < 10 * WALL_S, template
    assert await renderer.render(of(HONEST), SAID) == "<s><user>hello"


async def test_time_and_memory_are_named_as_what_was_too_much(renderer):
    with pytest.raises(TooLarge, match="CPU time"):
        await renderer.render(of(BOMBS[0]), SAID)
    with pytest.raises(TooLarge, match="bytes"):
        await renderer.render(of(BOMBS[1]), SAID)
    with pytest.raises(TooLarge, match="characters"):
        await renderer.render(of("{% for i in range(9999) %}{{ 'a' * 1000 }}{% endfor %}"), SAID)


async def test_what_a_request_said_is_in_no_later_ones_process(renderer):
    """Each is rendered in a fork of a process that has rendered nothing of anybody's."""
    await renderer.render(of("{{ messages }}"), [{"role": "user", "content": "secret"}])
    kept = "{% if x is not defined %}{% set x = messages %}{% endif %}{{ x }}"
    assert "secret" not in await renderer.render(of(kept), SAID)


async def test_a_renderer_that_is_killed_or_left_is_replaced(renderer):
    await renderer.render(of(HONEST), SAID)
    renderer._process.kill()
    await renderer._process.wait()
    assert await renderer.render(of(HONEST), SAID) == "<s><user>hello"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(renderer.render(of(BOMBS[0]), SAID), 0.01)
    assert await renderer.render(of(HONEST), SAID) == "<s><user>hello"  # and not the answer to the one before


def test_the_process_that_renders_can_open_nothing_and_start_nothing(tmp_path):
    """What an escape from jinja2's sandbox would find: run as one, in the place of the template."""
    script = tmp_path / "escaped.py"
    script.write_text(
        "import os, socket, sys, json\n"
        "from nodewire.chat import sandbox\n"
        "def escaped(made, asked):\n"
        "    found = []\n"
        "    for name, what in (('open', lambda: open('/etc/passwd')), ('write', lambda: open('/tmp/x', 'w')),\n"
        "                       ('socket', socket.socket), ('fork', os.fork),\n"
        "                       ('kill', lambda: os.kill(os.getppid(), 9)), ('list', lambda: os.listdir('/'))):\n"
        "        try:\n"
        "            what()\n"
        "        except OSError:\n"
        "            continue\n"
        "        found.append(name)\n"
        "    return json.dumps(found)\n"
        "sandbox.render = escaped\n"
        "sys.argv = ['sandbox', str(os.getppid())]\n"
        "sandbox.main()\n"
    )
    import json
    import subprocess
    import sys

    from nodewire.chat import PREFIX
    from nodewire.worker.sandbox import landlock, seccomp

    if not (landlock.available() and seccomp.available()):
        pytest.skip("this kernel has no Landlock or no seccomp")
    asked = json.dumps({"template": "", "tokens": {}, "messages": [], "tools": []}).encode()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        out, _ = process.communicate(PREFIX.pack(len(asked)) + asked, timeout=30)
    assert json.loads(json.loads(out[PREFIX.size :])["text"]) == []


def test_nothing_of_a_folder_is_published_that_is_no_template(tmp_path):
    config = tmp_path / "tokenizer_config.json"
    assert chat_template(tmp_path) is None
    config.write_text('{"chat_template": 5, "bos_token": ["x"]}')
    assert chat_template(tmp_path) is None
    config.write_text('{"chat_template": "x", "bos_token": {"content": "<s>"}, "eos_token": "' + "e" * 300 + '"}')
    with pytest.raises(BadManifest, match="eos_token"):
        chat_template(tmp_path)
    config.write_text('{"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}')
    found = chat_template(tmp_path)
    assert found is not None and found.template == "d"
    (tmp_path / "chat_template.jinja").write_text("x" * (MAX_TEMPLATE_CHARS + 1))
    with pytest.raises(TooLarge):
        chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("alone")
    config.write_text("{")
    with pytest.raises(BadConfig, match="JSON"):
        chat_template(tmp_path)
    assert sandbox.CPU_S <= 0.1  # DESIGN's
