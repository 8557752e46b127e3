"""Lone surrogates, which Python's json makes of a stranger's document and UTF-8 cannot hold, break no answer."""

import json
import mmap

import pytest

from nodewire.chat import sandbox
from nodewire.cli import output
from nodewire.errors import BadInput, NodewireError
from nodewire.kind import Limits
from nodewire.llm.checkpoint.loader import open_weights
from nodewire.worker.ipc import message
from nodewire.worker.process.serve import Server

LONE = "\ud800"


def test_a_worker_says_what_is_wrong_with_weights_whose_names_are_no_text(tmp_path):
    header = json.dumps({LONE: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights = tmp_path / "weights"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    (tmp_path / "program").write_bytes(b"")

    def load(engine, program, files, limits):
        return open_weights(files, {})

    arena = mmap.mmap(-1, 4_096)
    server = Server(-1, arena, arena, load, Limits(memory_bytes=2**30))
    call = {"id": 7, "op": "load", "task": "t", "engine": "e", "weights": [str(weights)], "slots": 1}
    answer = server._answer({**call, "program": str(tmp_path / "program")}, server._serve)
    said = message.unpack(answer[message.PREFIX.size :])
    assert (said["id"], said["error"]["code"], said["error"]["field"]) == (7, "bad-task", "weights.\\ud800")


def test_an_error_that_quotes_what_is_no_text_is_printed_as_json(capfdbinary):
    with pytest.raises(SystemExit):
        output.fail(NodewireError(f"{LONE}.safetensors", f"not in {LONE}"), as_json=True)
    said = json.loads(capfdbinary.readouterr().out)["error"]
    assert (said["field"], said["reason"]) == ("\\ud800.safetensors", "not in \\ud800")


@pytest.mark.parametrize("template", ["{{ '\\ud800' }}", "{{ raise_exception('\\ud800') }}", "{{ '\\ud800'.x.y }}"])
def test_a_template_that_writes_no_text_is_refused_by_the_process_that_renders_it(template):
    asked = {"template": template, "known": {}, "messages": [], "tools": []}
    with pytest.raises(BadInput) as error:
        sandbox.render(sandbox.environment(), asked)
    json.dumps(error.value.as_dict(), ensure_ascii=False).encode()
