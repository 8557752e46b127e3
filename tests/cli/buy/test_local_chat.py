"""`nodewire chat --local`: a talk with a model of this process, what is not computed again, and breaking off."""

import asyncio
import json
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nodewire.cli.buy.local_chat import TalkHere
from nodewire.errors import BadInput
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.tokens.sampling_params import parse_params
from tests.cli.here import run_here
from tests.kinds.llama import make_llama

ROOT = Path(__file__).parents[3]
TEMPLATE = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}cat:"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = make_llama(tmp_path_factory.mktemp("llama"), seed=5)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def chat(model, lines, *options):
    done = run_here("chat", "--local", str(model), "--json", *options, cwd=ROOT, stdin=lines)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def continued(model, prompt, max_tokens):
    whole = LocalDecoder(model)
    sampling = parse_params({"max_tokens": max_tokens, "special_tokens": False}, whole.positions)
    return "".join(whole.generate(prompt, sampling))


def test_each_turn_continues_the_talk_as_the_template_writes_it(model):
    asked = ["--temperature", "0", "--max-tokens", "9", "--system", "be brief"]
    code, said = chat(model, "the mat\n/ring\non what\n", *asked)
    assert code == 0 and said[0] == {"ready": "chat", "model": str(model)}
    one, two = (line["answer"] for line in said if "answer" in line)
    begun = "system: be brief\nuser: the mat\n"
    assert one["text"] == continued(model, f"{begun}cat:", 9) and one["reason"] == "length"
    assert two["text"] == continued(model, f"{begun}assistant: {one['text']}\nuser: on what\ncat:", 9)
    assert (one["completion_tokens"], one["cost_msat"], one["requests"]) == (9, 0, [])
    assert [line["error"]["field"] for line in said if "error" in line] == ["/ring"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--budget", "5sat"], "--budget"),
        (["--lookahead", "4"], "--lookahead"),
        (["--top-p", "7"], "top_p"),
    ],
)
def test_what_is_not_for_a_model_here_is_named(model, options, field):
    code, said = chat(model, "hello\n", *options)
    assert code == 1 and said[0]["error"]["field"] == field


def test_a_folder_that_is_none_is_told_before_torch_is_loaded(tmp_path):
    folders = (tmp_path / "nowhere", tmp_path, ROOT / "README.md")
    for folder, command in zip(folders, (["chat"], ["generate", "the cat"], ["embed", "the cat"]), strict=True):
        code = "import sys; from nodewire.cli import main\ntry: main()\nfinally: assert 'torch' not in sys.modules"
        run = [sys.executable, "-c", code, *command, "--local", str(folder)]
        done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and done.stderr.startswith("not-found  --local"), done.stderr


async def test_an_answer_broken_off_stays_and_the_next_has_its_beginning_already(model, monkeypatch):
    async with AsyncExitStack() as stack:
        params = {"max_tokens": 60, "temperature": 0.0}
        talk = await TalkHere.open(stack, model, None, params, threads=1, system="")
        rows, logits = [], talk.whole.logits

        def counted(ids, pos=0):
            rows.append(len(ids))
            return logits(ids, pos)

        monkeypatch.setattr(talk.whole, "logits", counted)
        underway = asyncio.Event()
        asking = asyncio.create_task(talk.answer("the mat", lambda text, made: made.tokens == 3 and underway.set()))
        await underway.wait()
        asking.cancel()
        made = await asking
        assert made.reason == "stopped" and 3 <= made.tokens < 60 and talk.history[1]["content"] == made.text
        rows.clear()
        again = await talk.answer("the mat", lambda text, made: None)
        assert 1 <= rows[0] < again.prompt_tokens  # both begin with the first question
        talk.history.clear()
        fresh = await talk.answer("the mat", lambda text, made: None)
        assert fresh.text == continued(model, "user: the mat\ncat:", 60)


async def test_a_model_without_a_template_needs_one(tmp_path):
    async with AsyncExitStack() as stack:
        with pytest.raises(BadInput, match="template"):
            await TalkHere.open(stack, make_llama(tmp_path), None, {"max_tokens": 2}, threads=1, system="")
