"""A sentence encoder split under a memory target answers as the whole one does, and no task exceeds its target."""

import functools
import hashlib

import pytest
import torch
from safetensors.torch import load_file

from nodewire.errors import BadInput, NotFound, OverMemory
from nodewire.graph import reference as whole
from nodewire.graph.families import bert, encoder_directory
from nodewire.graph.families.checkpoint import Checkpoint
from nodewire.graph.program.format import Program
from nodewire.graph.program.interpreter import Interpreter
from nodewire.graph.program.liveness import walk
from nodewire.graph.registration.encoder_splitter import split_encoder
from nodewire.protocol.encoding.byte_sizes import parse_size
from nodewire.weights.directory import stored_tensors

TEXTS = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The new movie is awesome.",
    "The cat sat on the mat while the rain fell, and nobody in the house could say for how long it had been so.",
]


@functools.cache
def _model(directory):
    from transformers import AutoModel

    return AutoModel.from_pretrained(directory, local_files_only=True, dtype=torch.float32).eval()


def eager(directory, input_ids, attention_mask):
    """The model in its authors' own code."""
    with torch.no_grad():
        hidden = _model(directory)(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    weight = attention_mask[..., None].float()
    return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def batch(vocabulary, rows, length):
    """Random ids with a ragged mask, the first row full."""
    generator = torch.Generator().manual_seed(rows * 1_000 + length)
    ids = torch.randint(5, vocabulary, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, length - row % length :] = 0
    return ids * mask, mask


TINY = (45_000, 4_000_000)
MINILM = (30_000_000, 64_000_000)


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """split_encoder into a folder of its own, made once for each directory and target."""

    @functools.cache
    def made(directory, target, max_batch=32):
        return split_encoder(directory, target, tmp_path_factory.mktemp("out"), max_batch=max_batch)

    return made


@pytest.fixture(params=TINY)
def tiny(request, tiny_directory, split):
    return split(tiny_directory, request.param, 4)


@pytest.fixture(params=MINILM)
def minilm(request, minilm_directory, split):
    return split(minilm_directory, request.param)


@pytest.fixture(scope="module")
def chain_of(load_chain):
    """A registration's tasks, loaded once for each."""
    known = {}

    def loaded(registration):
        digest = registration.manifest.digest()
        if digest not in known:
            known[digest] = load_chain(registration)
        return known[digest]

    return loaded


@pytest.mark.parametrize(("rows", "length"), [(1, 2), (1, 24), (3, 7), (4, 6)])
def test_a_tiny_encoder_split_at_two_sizes_equals_eager_bit_for_bit(tiny, tiny_directory, chain_of, rows, length):
    ids, mask = batch(320, rows, length)
    assert torch.equal(chain_of(tiny).embed_ids(ids, mask), eager(tiny_directory, ids, mask))


def test_a_single_id_is_answered_as_eager_does_up_to_rounding(tiny, tiny_directory, chain_of):
    ids, mask = batch(320, 1, 1)
    assert (chain_of(tiny).embed_ids(ids, mask) - eager(tiny_directory, ids, mask)).abs().max() <= 1e-6


def test_minilm_split_at_two_sizes_equals_eager_bit_for_bit_at_lengths_and_batches_never_traced(
    minilm, minilm_directory, chain_of
):
    chain = chain_of(minilm)
    for rows, length in ((1, 256), (1, 5), (3, 64), (32, 8)):
        ids, mask = batch(30_522, rows, length)
        assert torch.equal(chain.embed_ids(ids, mask), eager(minilm_directory, ids, mask)), (rows, length)


def test_minilm_at_30_mb_has_its_word_embeddings_in_two_tasks_and_four_graph_tasks_in_all(minilm_directory, split):
    registration = split(minilm_directory, 30_000_000)
    graph = [task for task in registration.manifest.tasks if task.engine == "graph"]
    assert [task.name for task in graph] == ["embed.0", "embed.1", "graph.0", "graph.1"]
    assert len({edge.name for edge in registration.manifest.edges if edge.target == "graph.0"}) == 3


def test_a_paraphrase_is_closer_than_an_unrelated_sentence_and_texts_keep_their_order(
    minilm, minilm_directory, chain_of
):
    vectors = chain_of(minilm).embed(TEXTS)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.5
    reference = whole.embed(minilm_directory, TEXTS)
    assert (vectors - reference).abs().max() <= 1e-5
    assert torch.allclose(vectors.norm(dim=1), torch.ones(len(TEXTS)), atol=1e-5)


def test_minilm_matches_sentence_transformers_itself(minilm_directory, split, chain_of):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(minilm_directory), device="cpu")
    expected = model.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)
    assert (chain_of(split(minilm_directory, 30_000_000)).embed(TEXTS) - expected).abs().max() <= 1e-5


def test_the_reference_answers_many_texts_in_order(tiny_directory):
    texts = [f"w{k} cat" for k in range(30, 70)]
    vectors = whole.embed(tiny_directory, texts)
    assert vectors.shape == (40, 32)
    assert (vectors[33] - whole.embed(tiny_directory, [texts[33]])[0]).abs().max() <= 1e-6


def test_many_texts_leave_the_driver_as_batches_under_rows_and_volume_and_come_back_in_order(
    tiny, tiny_directory, load_chain, as_texts_frame
):
    texts = ["cat " * (k % 30) for k in range(25)]
    # Frames here run ahead of each other as far as they can, so tasks get more room for those that wait.
    frames = load_chain(tiny, more=1_000_000).run([as_texts_frame(texts)])
    assert len(frames) > 1
    assert [frame.meta["chunk"] for frame in frames] == [frame.seq for frame in frames] == list(range(len(frames)))
    assert [frame.meta["rows"] for frame in frames] == [len(frame.tensors[0]) for frame in frames]
    assert [frame.meta.get("end", False) for frame in frames] == [False] * (len(frames) - 1) + [True]
    vectors = torch.cat([frame.tensors[0] for frame in frames])
    assert (vectors - whole.embed(tiny_directory, texts)).abs().max() <= 1e-5


@pytest.mark.parametrize("target", TINY)
def test_no_task_of_a_tiny_encoder_takes_more_than_the_target(tiny_directory, split, target):
    tasks = split(tiny_directory, target, 4).manifest.tasks
    assert all(task.memory_bytes <= target for task in tasks if task.engine == "graph")


@pytest.mark.parametrize("target", MINILM)
def test_no_task_of_minilm_takes_more_than_the_target(minilm_directory, split, target):
    assert all(task.memory_bytes <= target for task in split(minilm_directory, target).manifest.tasks)


def test_blobs_are_named_by_their_hash_and_are_all_that_the_manifest_cites(tiny):
    cited = {ref.sha256: ref.bytes for task in tiny.manifest.tasks for ref in (task.program, *task.weights)}
    assert cited.keys() == tiny.blobs.keys()
    for sha256, path in tiny.blobs.items():
        data = path.read_bytes()
        assert hashlib.sha256(data).hexdigest() == sha256 == path.name
        assert len(data) == cited[sha256]


def test_the_manifest_is_an_embedding_model_with_its_driver_first_and_vectors_straight_to_the_customer(tiny):
    manifest = type(tiny.manifest).unpack(tiny.manifest.pack())
    assert manifest == tiny.manifest
    assert (manifest.mode, manifest.context, manifest.name) == ("embed", 24, "tiny-bert")
    assert manifest.driver.engine == "encoder.driver"
    ends = {edge.name: (edge.source, edge.target) for edge in manifest.edges}
    assert ends["texts"] == ("customer", "driver")
    assert ends["vectors"] == (manifest.tasks[-1].name, "customer")


def test_the_same_directory_and_target_make_the_same_manifest(tiny_directory, split, tmp_path):
    again = split_encoder(tiny_directory, 45_000, tmp_path, max_batch=4).manifest
    assert again.digest() == split(tiny_directory, 45_000, 4).manifest.digest()


def test_a_target_under_the_largest_node_is_refused_by_name_with_one_that_would_do(tiny_directory, tmp_path):
    with pytest.raises(OverMemory, match=r"^scaled_dot_product_attention: needs a target of") as refused:
        split_encoder(tiny_directory, 20_000, tmp_path, max_batch=4)
    enough = parse_size(refused.value.reason.split("target of ")[1].split(",")[0])
    assert enough > 20_000
    made = split_encoder(tiny_directory, enough, tmp_path, max_batch=4).manifest
    assert all(task.memory_bytes <= enough for task in made.tasks if task.engine == "graph")


def test_a_directory_without_weights_or_of_another_family_is_refused_by_name(tiny_directory, tmp_path):
    config = (tiny_directory / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(NotFound, match=r"model\.safetensors"):
        encoder_directory.read(tmp_path)
    (tmp_path / "config.json").write_text(config.replace('"bert"', '"gpt2"'))
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).symlink_to(tiny_directory / name)
    with pytest.raises(BadInput, match="model_type"):
        bert.build(encoder_directory.read(tmp_path))


def test_a_missing_weight_is_refused_by_name(tiny_directory):
    module, _ = bert.build(encoder_directory.read(tiny_directory))
    stored = stored_tensors(tiny_directory)
    word = "embeddings.word_embeddings.weight"
    lacking = {name: one for name, one in stored.items() if not name.endswith(word)}
    with pytest.raises(BadInput, match=r"embeddings\.word"):
        Checkpoint(module.model, lacking, {}).parts(word)
    headed = {f"bert.{name.removeprefix('bert.')}": one for name, one in stored.items()}
    assert Checkpoint(module.model, headed, {}).parts(word) == (headed[f"bert.{word}"],)


def measured_bytes(call):
    """The most that torch's CPU allocator held during `call`, above what it held before."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize(("rows", "length"), [(1, 256), (8, 32)])
def test_minilms_tasks_take_the_memory_that_was_predicted_within_two_percent(minilm, rows, length):
    sizes = {"batch": rows, "sequence": length}
    for task in minilm.manifest.tasks:
        if task.engine != "graph":
            continue
        program = Program.decode(minilm.blobs[task.program.sha256].read_bytes())
        tensors = load_file(minilm.blobs[task.weights[0].sha256])
        run = Interpreter(program, tensors)

        def call(program=program, run=run):
            inputs = {
                i.name: torch.ones([sizes[d] if isinstance(d, str) else d for d in i.shape], dtype=i.dtype)
                for i in program.inputs
            }
            run(inputs, sizes)

        call()
        assert measured_bytes(call) == pytest.approx(walk(program, sizes, 2**40).peak_bytes, rel=0.02), task.name
