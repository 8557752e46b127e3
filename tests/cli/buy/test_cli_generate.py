"""`nodewire generate --local`: what is asked of a text, and what is told of it, without any market."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nodewire.cli.buy import ask
from nodewire.cli.buy.job_view import GrowingText
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params
from tests.cli.here import run_here
from tests.kinds.llama import make_llama

pytest.importorskip("llguidance")

ROOT = Path(__file__).parents[3]
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["cat", "dog"]}}, "required": ["kind"]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("llama"), seed=5)


def generate(model, *options, cwd, run=run_here):
    done = run("generate", "the cat", "--local", str(model), "--json", *options, cwd=cwd)
    return done.returncode, json.loads(done.stdout)


def apart(*command, cwd):
    """The command in a process of its own."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nodewire.cli import main; main()"
    command = [sys.executable, "-c", code, str(ROOT), *command]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_a_schemas_text_with_its_log_probabilities(model, tmp_path):
    (tmp_path / "schema.json").write_text(json.dumps({**SCHEMA, "additionalProperties": False}))
    asked = ["--json-schema", "schema.json", "--logprobs", "2", "--temperature", "1.5", "--seed", "3"]
    code, said = generate(model, *asked, cwd=tmp_path, run=apart)
    assert code == 0 and json.loads(said["text"])["kind"] in ("cat", "dog")
    assert [rows[0]["id"] for rows in said["logprobs"]] == said["ids"]
    assert all(len(rows) == 3 and rows[0].keys() == {"id", "logprob", "text"} for rows in said["logprobs"])
    assert "logprobs" not in generate(model, "--max-tokens", "2", cwd=tmp_path)[1]


@pytest.mark.parametrize(
    ("content", "options", "field"),
    [
        (None, ["--json-schema", "schema.json"], "--json-schema"),
        (b"\xff\xfe", ["--json-schema", "schema.json"], "--json-schema"),
        (b"[]", ["--json-schema", "schema.json"], "json_schema"),
        (b'{"type": "nope"}', ["--json-schema", "schema.json"], "json_schema"),
        (None, ["--logprobs", "21"], "logprobs"),
        (None, ["--top-k", "-1"], "top_k"),
        (None, ["--min-p", "1.5"], "min_p"),
        (None, ["--repetition-penalty", "-2"], "repetition_penalty"),
    ],
)
def test_what_cannot_be_used_is_named(model, tmp_path, content, options, field):
    if content is not None:
        (tmp_path / "schema.json").write_bytes(content)
    code, said = generate(model, *options, cwd=tmp_path)
    assert code == 1 and said["error"]["field"] == field


def test_how_tokens_are_drawn_is_said_by_options(model, tmp_path):
    plain = generate(model, "--max-tokens", "12", cwd=tmp_path)[1]["ids"]
    hot = ["--max-tokens", "12", "--temperature", "5", "--seed", "3"]
    wild = generate(model, *hot, cwd=tmp_path)[1]["ids"]
    assert wild != plain
    assert generate(model, *hot, "--top-k", "1", cwd=tmp_path)[1]["ids"] == plain
    assert generate(model, *hot, "--min-p", "1", cwd=tmp_path)[1]["ids"] == plain
    new = generate(model, "--max-tokens", "12", "--repetition-penalty", "10", cwd=tmp_path)[1]["ids"]
    assert len(set(new)) >= len(set(plain))


def test_a_generation_that_is_stopped_ends_its_line(model, monkeypatch, capsys):
    add, shown = GrowingText.add, []

    def interrupted(self, text):
        add(self, text)
        shown.append(text)
        if len(shown) == 3:
            raise KeyboardInterrupt  # as Ctrl-C does, wherever it comes

    monkeypatch.setattr(GrowingText, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ask.generate("the cat", local=model, max_tokens=20)
    out, err = capsys.readouterr()
    assert out == "".join(shown) + "\n" and err.endswith("\n")


def test_a_message_is_answered_by_the_models_chat_template(model, tmp_path):
    code, said = generate(model, "--chat", cwd=tmp_path)
    assert code == 1 and said["error"]["field"] == "--chat"
    talking = shutil.copytree(model, tmp_path / "talking")
    (talking / "chat_template.jinja").write_text("user: {{ messages[0].content }}\ncat:")
    whole = LocalDecoder(model)
    sampling = parse_params({"max_tokens": 9, "special_tokens": False}, whole.positions)
    code, said = generate(talking, "--chat", "--max-tokens", "9", cwd=tmp_path)
    assert code == 0 and said["text"] == "".join(whole.generate("user: the cat\ncat:", sampling))
    assert generate(talking, "--max-tokens", "9", cwd=tmp_path)[1]["ids"] != said["ids"]
