"""Split or whole, the tokens are those of transformers."""

import pytest
import torch
from transformers import LlamaForCausalLM

from nodewire.kind import Limits
from nodewire.llm import actor, whole
from nodewire.llm.split import split_decoder
from nodewire.protocol.frame import Frame
from tests.llm.conftest import make_llama

PROMPT = "the cat sat on the m"
ROOM = Limits(memory_bytes=50_000_000)


def load(registration):
    files = registration.blobs
    return {
        task.name: actor.load(
            task.engine, files[task.program.sha256].read_bytes(), [files[w.sha256] for w in task.weights], ROOM
        )
        for task in registration.manifest.tasks
    }


def prompt_frame(text=PROMPT):
    return Frame("prompt", 0, (torch.tensor(list(text.encode()), dtype=torch.uint8),), {})


def run(registration, actors, session="s", **params):
    """Route frames between actors until the end: the ids and the text."""
    targets = {edge.name: edge.target for edge in registration.manifest.edges}
    for one in actors.values():
        one.open(session, {"max_tokens": 64, **params})
    frames, ids, text = [prompt_frame()], [], ""
    while frames:
        frame = frames.pop(0)
        if targets[frame.edge] == "customer":
            ids += frame.tensors[0].tolist()
            text += frame.meta["text"]
        else:
            frames += actors[targets[frame.edge]].receive(session, frame)
    for one in actors.values():
        one.close(session)
    return ids, text


def reference(folder, count):
    from nodewire.llm.split import read_tokenizer
    from nodewire.llm.tokenizer import Tokenizer

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([Tokenizer(read_tokenizer(folder)).encode(PROMPT)])
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False, pad_token_id=0)
    return out[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"num_key_value_heads": 4, "tie_word_embeddings": False},
        {"num_key_value_heads": 1, "rope_theta": 500_000.0, "num_hidden_layers": 2},
        {"head_dim": 16, "hidden_size": 24, "rms_norm_eps": 1e-5},
        {"dtype": torch.bfloat16},
    ],
)
def test_whole_split_and_transformers_agree_token_by_token(tmp_path, shape):
    folder = make_llama(tmp_path, seed=3, **shape)
    expected = reference(folder, 64)
    assert [i for p in whole.generate(folder, PROMPT, max_tokens=64) for i in p.ids] == expected
    (tmp_path / "out").mkdir()
    registration = split_decoder(folder, 400_000, tmp_path / "out", slots=1, name="tiny")
    assert len(registration.manifest.tasks) >= 2
    assert run(registration, load(registration))[0] == expected


def test_pieces_together_are_the_text_of_the_whole(llama, tmp_path):
    registration = split_decoder(llama, 400_000, tmp_path, slots=1, name="tiny")
    ids, text = run(registration, load(registration))
    assert text == "".join(p.text for p in whole.generate(llama, PROMPT, max_tokens=64))
    assert len(ids) <= 64


def test_sampling_with_a_seed_repeats(llama):
    def once(seed):
        return [p.ids for p in whole.generate(llama, PROMPT, max_tokens=20, temperature=1.5, top_p=0.9, seed=seed)]

    assert once(7) == once(7) != once(8)


def test_sessions_beside_each_other_do_not_mix(llama, tmp_path):
    registration = split_decoder(llama, 800_000, tmp_path, slots=2, name="tiny")
    actors = load(registration)
    alone = run(registration, actors, "a")[0]
    for one in actors.values():
        one.open("b", {"max_tokens": 8})
    actors["driver"].receive("b", prompt_frame("mat mat mat"))
    assert run(registration, actors, "c")[0] == alone


def test_a_session_rolls_back_by_position(llama, tmp_path):
    registration = split_decoder(llama, 10_000_000, tmp_path, slots=1, name="tiny")
    stage = load(registration)["stage.0"]
    stage.open("s", {})
    x = torch.randn(6, 32)
    stage.receive("s", Frame("hidden.0", 0, (x,), {"pos": 0}))
    (right,) = stage.receive("s", Frame("hidden.0", 1, (x[:1],), {"pos": 6}))
    stage.receive("s", Frame("hidden.0", 2, (torch.randn(3, 32),), {"pos": 6}))
    (again,) = stage.receive("s", Frame("hidden.0", 3, (x[:1],), {"pos": 6}))
    assert torch.equal(right.tensors[0], again.tensors[0])


def test_a_prefill_in_pieces_gives_what_one_gives(llama, tmp_path):
    registration = split_decoder(llama, 10_000_000, tmp_path, slots=2, name="tiny")
    stage = load(registration)["stage.0"]
    stage.open("one", {})
    stage.open("two", {})
    x = torch.randn(9, 32)
    (whole_,) = stage.receive("one", Frame("hidden.0", 0, (x,), {"pos": 0}))
    stage.receive("two", Frame("hidden.0", 0, (x[:5],), {"pos": 0}))
    (last,) = stage.receive("two", Frame("hidden.0", 1, (x[5:],), {"pos": 5}))
    torch.testing.assert_close(whole_.tensors[0], last.tensors[0], atol=1e-5, rtol=1e-5)
