"""LongRoPE as transformers switches it: by the first context, which a session is opened to stay within, or not."""

from random import Random

import pytest
import torch

from bench.tasks.tiny_decoders import LONG, make_family
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.llm.cuda_graphs import runner
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.local.speculative import LocalSpeculation
from nodewire.llm.tokens.sampling_params import Sampling
from nodewire.protocol.model.kv_pages import PAGE
from tests.llm.cuda_graphs.test_runner import Sides
from tests.llm.families.test_llm_families import PROMPT, assert_same, greedy, reference
from tests.llm.llm_lanes import Plain, assert_close, frame, whole_stage
from tests.llm.llm_models import Ring

NAME, FIRST = "phi3, longrope, short", 64
ROWS = [n * 7 % 50 for n in range(40)]
PROMPTS = {"within the first context": (PROMPT[:30], 30), "beyond it": (PROMPT, 40)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    longer = {"rope_parameters": LONG, "original_max_position_embeddings": FIRST}
    return make_family(tmp_path_factory.mktemp("longrope"), NAME, **longer)


@pytest.mark.parametrize("case", PROMPTS)
@torch.inference_mode()
def test_a_session_says_what_transformers_says(directory, case, tmp_path):
    """Whole, alone and in a ring that is registered for more than the first context."""
    prompt, count = PROMPTS[case]
    tokens, gaps = greedy(reference(NAME, directory), prompt, count)
    ours = list(LocalDecoder(directory).tokens(prompt, Sampling(count)))
    assert_same(ours, tokens, gaps)
    ring = Ring(split_decoder(directory, None, tmp_path, slots=1, split=2))
    ids, _, _ = ring.generate(prompt, max_tokens=count, positions=len(prompt) + count)
    assert ids == ours


@torch.inference_mode()
def test_a_whole_model_turns_back_to_the_short_factors(directory):
    whole = LocalDecoder(directory)
    first = list(whole.tokens(PROMPT[:30], Sampling(20)))
    long = list(whole.tokens(PROMPT[:30], Sampling(100)))[:20]
    assert list(whole.tokens(PROMPT[:30], Sampling(20))) == first != long


@torch.inference_mode()
def test_a_text_alone_is_what_the_whole_model_makes_of_it(directory):
    whole, text = LocalDecoder(directory), "the quick brown fox"
    alone = [token for token, _ in LocalSpeculation(directory).steps(text, {"max_tokens": 30, "lookahead": 4})]
    assert alone == list(whole.tokens(whole.tokenizer.encode(text), Sampling(30)))


def test_a_short_session_of_a_long_task_is_one_of_a_short_task_to_the_last_bit(directory, tmp_path):
    long, short = (whole_stage(directory, tmp_path / str(size), slots=2, context=size) for size in (4 * FIRST, FIRST))
    outs = []
    for stage in (long, short):
        stage.open("s", {"positions": FIRST})
        outs.append([stage.receive("s", one)[0].tensors[0] for one in (frame(ROWS, 0), frame([7], 40, seq=1))])
    assert all(torch.equal(one, other) for one, other in zip(*outs, strict=True))


def test_sessions_of_both_kinds_go_together(directory, tmp_path):
    together, apart = (whole_stage(directory, tmp_path / name, slots=2, context=4 * FIRST) for name in "ab")
    for stage in (together, apart):
        stage.open("short", {"positions": FIRST})
        stage.open("long", {"positions": 2 * FIRST})
    for frames in ([frame(ROWS, 0)] * 2, [frame([7], 40, seq=1)] * 2):
        calls = list(zip(("short", "long"), frames, strict=True))
        answers = together.receive_together([(session, (one,)) for session, one in calls])
        alone = [apart.receive(session, one) for session, one in calls]
        for (made,), (expected,) in zip(answers, alone, strict=True):
            assert_close(made.tensors[0], expected.tensors[0])
        assert (answers[0][0].tensors[0] - answers[1][0].tensors[0]).abs().max() > 1e-3


def test_captured_steps_of_both_kinds_are_plain_ones(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "MET", 1)
    sides, chance = Sides(directory, tmp_path), Random(3)
    sizes = {"short": FIRST, "long": 2 * FIRST}
    for session, positions in sizes.items():
        sides.open(session, positions=positions)
    sessions = {session: Plain(sides.plain, positions) for session, positions in sizes.items()}
    for _ in range(60):
        calls = [(session, one.at_random(chance)[0]) for session, one in sessions.items()]
        for found, expected in sides.say(*calls):
            assert_close(found, expected)
    assert sides.graphs.replays > 20


def test_a_prompt_s_beginning_is_found_only_by_sessions_that_turn_alike(tmp_path):
    longer = {"rope_parameters": LONG, "original_max_position_embeddings": 2 * PAGE}
    directory = make_family(tmp_path / "model", NAME, **longer)
    stage = whole_stage(directory, tmp_path / "out", slots=3, context=4 * PAGE)
    page, cached = [n % 50 for n in range(PAGE)], []
    for number, positions in enumerate((4 * PAGE, 2 * PAGE, 3 * PAGE, PAGE + 1)):
        stage.open(f"s{number}", {"positions": positions, "prefixes": "one"})
        (answer,) = stage.receive(f"s{number}", frame(page, 0, seq=0))
        cached.append(answer.meta.get("cached", 0))
        stage.close(f"s{number}")
    assert cached == [0, 0, PAGE, PAGE]


@torch.inference_mode()
def test_longrope_uses_the_long_factors_where_the_context_is_long(tmp_path):
    longer = {"rope_parameters": LONG, "original_max_position_embeddings": 32}
    directory = make_family(tmp_path, "phi3, longrope, short", **longer)
    model = reference("phi3, longrope, short", directory)
    logits = model(torch.tensor([PROMPT])).logits[0, -1]
    assert (LocalDecoder(directory).logits(PROMPT) - logits).abs().max() <= 1e-4
    logits = model(torch.tensor([PROMPT[:20]])).logits[0, -1]
    assert (LocalDecoder(directory, context=32).logits(PROMPT[:20]) - logits).abs().max() <= 1e-4


@torch.inference_mode()
def test_longrope_where_a_text_grows_beyond_the_first_context(tmp_path):
    """transformers goes by the position that is reached: up to the first context its `generate` is what a short task
    computes, and from the first position beyond, where it reads all again, a long one's. A decode step by itself lets
    the keys stand that the short factors have turned, which is neither."""
    longer = {"rope_parameters": LONG, "original_max_position_embeddings": 32}
    directory = make_family(tmp_path, "phi3, longrope, short", **longer)
    model, short, long = (
        reference("phi3, longrope, short", directory),
        LocalDecoder(directory, context=32),
        LocalDecoder(directory),
    )
    wish = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    said = model.generate(torch.tensor([PROMPT[:30]]), output_logits=True, return_dict_in_generate=True, **wish)
    ids = said.sequences[0].tolist()
    for n, logits in zip(range(30, 36), said.logits, strict=True):
        assert ((short if n <= 32 else long).logits(ids[:n]) - logits[0]).abs().max() <= 1e-4
    assert (short.logits(ids[:32]) - long.logits(ids[:32])).abs().max() > 1e-2
    past = model(torch.tensor([ids[:32]]), use_cache=True).past_key_values
    mixed = model(torch.tensor([ids[32:33]]), past_key_values=past).logits[0, -1]
    assert (long.logits(ids[:33]) - mixed).abs().max() > 1e-2
