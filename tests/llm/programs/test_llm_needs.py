"""What a decoder needs at a target, what to change where it is too large, and in what it computes if nobody says it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nodewire.errors import OverMemory
from nodewire.llm.checkpoint.checkpoint import open_checkpoint
from nodewire.llm.checkpoint.splitter import CONTEXT, DecoderOptions, split_decoder
from nodewire.llm.local import arithmetic
from nodewire.llm.local.reference import LocalDecoder
from nodewire.llm.programs.needs import Needs
from nodewire.protocol.model.kv_pages import pages_of
from nodewire.protocol.model.manifest import MAX_BLOB_BYTES
from tests.llm.llm_models import PLAIN, make_model

CONFIGS = Path(__file__).parents[3] / "bench" / "configs"
GB = 10**9


@pytest.fixture
def folder(tmp_path):
    """A function that makes the folder of a model that people have, config.json alone."""

    def make(name):
        shutil.copy(CONFIGS / f"{name}.json", tmp_path / "config.json")
        return tmp_path

    return make


def needs_of(directory, **changes) -> Needs:
    checkpoint = open_checkpoint(directory, is_dry=True)
    config = checkpoint.config
    plain = Needs(config, 4, min(CONTEXT, config.max_position_embeddings), checkpoint.arithmetic, None, False, 0)
    return replace(plain, **changes)


def changed(needs: Needs, said: str) -> Needs:
    """A registration's needs with the options that are proposed."""
    words = iter(said.split())
    for word in words:
        match word:
            case "--context":
                needs = replace(needs, positions=int(next(words)))
            case "--sessions":
                needs = replace(needs, slots=int(next(words)))
            case "--kv" | "--dtype":
                needs = replace(needs, **{word[2:]: next(words)})
            case "--lend":
                needs = replace(needs, lend=True)
            case _:
                raise AssertionError(word)
    return needs


def test_llama_3_1_8b_lies_on_four_cards_of_8_gb_and_takes_little_more_than_weights_and_kv(folder):
    made = split_decoder(folder("llama-3.1-8b"), 8 * GB, None, slots=4)
    tasks = made.manifest.tasks
    assert (made.manifest.context, len(tasks)) == (CONTEXT, 4)
    assert all(task.memory_bytes <= 8 * GB for task in tasks)
    weights = sum(blob.bytes for task in tasks for blob in task.weights)
    kv = 4 * CONTEXT * 32 * 2 * 8 * 128 * 2
    assert sum(task.memory_bytes for task in tasks) <= 1.15 * (weights + kv)
    assert sum(task.page_bytes for task in tasks) * 4 * pages_of(CONTEXT) == kv
    assert max(size for task in tasks if (size := sum(blob.bytes for blob in task.weights))) > MAX_BLOB_BYTES
    assert max(blob.bytes for task in tasks for blob in task.weights) <= 2**30 + 2**20, "files that stores take"


@pytest.mark.parametrize("name", ["llama-3.1-8b", "phi-3.5-mini", "gemma-3-12b", "command-r-35b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("target", [1 * GB, 2 * GB, 4 * GB])
def test_a_change_that_is_proposed_is_one_that_fits(folder, name, target):
    whole = needs_of(folder(name), positions=65_536, slots=16)
    said = whole.change(target)
    if whole.least <= target:
        return
    if not said:
        assert changed(whole, "--context 1024 --lend --kv int8").least > target
        return
    assert changed(whole, said).least <= target
    if said.startswith("--context"):
        assert replace(whole, positions=2 * changed(whole, said).positions).least > target


def test_where_nothing_is_small_enough_the_refusal_names_the_change_that_would_do(folder):
    directory = folder("phi-3.5-mini")
    with pytest.raises(
        OverMemory, match=r"^layer 0: .*; `--target-vram \S+GB` would do; --context \d+ would fit$"
    ) as caught:
        split_decoder(directory, 6 * GB, None, slots=4, options=DecoderOptions(context=131_072))
    context = int(caught.value.reason.split()[-3])
    assert (
        split_decoder(directory, 6 * GB, None, slots=4, options=DecoderOptions(context=context)).manifest.context
        == context
    )


def test_what_targets_have_room_for_is_what_would_be_cut(folder):
    directory = folder("llama-3.1-8b")
    made = split_decoder(directory, 5 * GB, None, slots=4)
    by_target = {fit.target_bytes: fit for fit in made.fits}
    assert sorted(by_target) == [n * GB for n in (4, 5, 6, 8, 12, 16, 24)]
    for target, fit in by_target.items():
        cut = split_decoder(directory, target, None, slots=4).manifest
        assert (fit.tasks, fit.context) == (len(cut.tasks), CONTEXT)
        stages = [task.name for task in cut.tasks[1:]]
        assert max(cut.bytes_at(name, fit.sessions) for name in stages) <= target
        assert max(cut.bytes_at(name, fit.sessions + 1) for name in stages) > target
    long = split_decoder(directory, 24 * GB, None, slots=4, options=DecoderOptions(context=131_072))
    small = long.fits[0]
    assert (small.target_bytes, small.tasks, small.change) == (4 * GB, 0, "--context 65536")


def test_a_registration_computes_in_what_most_weights_are_stored_in(tmp_path):
    made = {}
    for stored in (torch.float32, torch.bfloat16, torch.float16):
        directory = make_model(tmp_path / str(stored), PLAIN, stored)
        bare = tmp_path / f"{stored} bare"
        bare.mkdir()
        shutil.copy(directory / "config.json", bare)
        cuts = split_decoder(directory, None, None, slots=1, split=1), split_decoder(bare, None, None, slots=1, split=1)
        sent = {tensor.dtype for cut in cuts for edge in cut.manifest.inner_edges for tensor in edge.tensors}
        (made[stored],) = sent
    assert made == {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float32"}
    directory = tmp_path / str(torch.bfloat16)
    wide = split_decoder(directory, None, None, slots=1, split=1, options=DecoderOptions(dtype="float32")).manifest
    narrow = split_decoder(directory, None, None, slots=1, split=1).manifest
    assert wide.tasks[1].page_bytes == 2 * narrow.tasks[1].page_bytes
    assert wide.tasks[1].memory_bytes > narrow.tasks[1].memory_bytes


def test_alone_it_computes_in_float32_where_bfloat16_is_no_quicker(tmp_path, monkeypatch):
    """On a processor that has none, and where a cache holds the model."""
    directory = make_model(tmp_path, PLAIN, torch.bfloat16)

    def kind(has, cache):
        monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": has}, raising=False)
        monkeypatch.setattr(arithmetic, "cache_bytes", lambda: cache)
        return LocalDecoder(directory)._lanes.cells[0].dtype

    assert kind(True, 0) == torch.bfloat16
    assert kind(False, 0) == kind(True, 2**30) == torch.float32
    assert LocalDecoder(directory, dtype="bfloat16")._lanes.cells[0].dtype == torch.bfloat16


def test_the_context_is_8192_unless_more_is_asked_for_or_the_model_has_less(folder):
    directory = folder("llama-3.1-8b")
    said = json.loads((directory / "config.json").read_text())
    for own, asked, context in (
        (131_072, None, 8_192),
        (131_072, 16_384, 16_384),
        (2_048, None, 2_048),
        (2_048, 9_999, 2_048),
    ):
        (directory / "config.json").write_text(json.dumps(said | {"max_position_embeddings": own}))
        made = split_decoder(directory, 24 * GB, None, slots=1, options=DecoderOptions(context=asked))
        assert made.manifest.context == context
        told = f"sessions have {context} of the model's {own} positions"
        assert (told in made.report) == (asked is None and context < own)
