"""A GGUF file's header is bounded before anything is taken for it; what is wrong is named."""

import struct
import tracemalloc
from dataclasses import replace

import pytest

from bench.fuzz import hostile_gguf as hostile
from bench.fuzz.hostile_gguf import ARRAY, BOOL, F32, TEXT, U8, U32
from nodewire.errors import BadTask, NodewireError, NotFound, TooLarge, Unsupported
from nodewire.gguf import header, model
from nodewire.gguf.model import open_model

SMALL = hostile.small()


def read(tmp_path, file):
    path = tmp_path / "model.gguf"
    path.write_bytes(file if isinstance(file, bytes) else file.encode())
    return header.read(path)


def test_a_well_formed_file_is_read_as_it_says(tmp_path):
    found = read(tmp_path, SMALL)
    assert found.metadata["llama.embedding_length"] == hostile.WIDTH
    assert found.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5
    assert found.metadata["tokenizer.ggml.add_bos_token"] is True
    assert len(found.metadata["tokenizer.ggml.tokens"]) == hostile.TOKENS
    placed = found.tensors["blk.0.attn_k.weight"]
    assert (placed.type.name, placed.shape) == ("Q8_0", (hostile.HEAD, hostile.WIDTH))
    data = (tmp_path / "model.gguf").read_bytes()[placed.start : placed.start + placed.nbytes]
    assert data == next(one.data for one in SMALL.tensors if one.name == "blk.0.attn_k.weight")


def test_version_2_is_read(tmp_path):
    assert read(tmp_path, replace(SMALL, version=2)).tensors.keys() == read(tmp_path, SMALL).tensors.keys()


FAULTS = {
    "magic": (replace(SMALL, magic=b"GGML"), BadTask, "magic.*no GGUF"),
    "empty": (b"", BadTask, "magic"),
    "version 1": (replace(SMALL, version=1), Unsupported, "version.*1 is not 2 or 3"),
    "version of other byte order": (replace(SMALL, version=3 << 24), Unsupported, "big-endian"),
    "tensors 2^63": (replace(SMALL, counts=(2**63, None)), TooLarge, "tensor_count: 9223372036854775808"),
    "keys 2^63": (replace(SMALL, counts=(None, 2**63)), TooLarge, "metadata_kv_count: 9223372036854775808"),
    "more keys than there are": (replace(SMALL, counts=(None, 4_000)), NodewireError, "gguf"),
    "text 2^63": (replace(SMALL, lengths={"general.name": 2**63}), TooLarge, "general.name: a text of"),
    "text to the end": (replace(SMALL, lengths={"general.name": 2**21}), BadTask, "general.name: cut short"),
    "array 2^63": (replace(SMALL, lengths={"tokenizer.ggml.merges": 2**63}), TooLarge, "merges: 9223372036854775808"),
    "array to the end": (replace(SMALL, lengths={"tokenizer.ggml.token_type": 2**20}), BadTask, "_type: cut short"),
    "array of arrays": (SMALL.saying("x", ARRAY, (ARRAY, [(U8, [1])])), BadTask, "x: an array of type 9"),
    "value of no type": (SMALL.saying("x", 13, 0), BadTask, "x: a value of type 13"),
    "boolean of 2": (SMALL.saying("x", BOOL, 2), BadTask, "x: neither true nor false"),
    "text of no UTF-8": (SMALL.saying("x", TEXT, b"\xff"), BadTask, "x: a text that is not UTF-8"),
    "float that is none": (SMALL.saying("x", F32, float("nan")), BadTask, "x: is not finite"),
    "key twice": (replace(SMALL, metadata=(*SMALL.metadata, SMALL.metadata[0])), BadTask, "stands twice"),
    "alignment 0": (SMALL.saying("general.alignment", U32, 0), BadTask, "alignment"),
    "alignment 48": (SMALL.saying("general.alignment", U32, 48), BadTask, "alignment.*no power of two"),
    "no dimension": (SMALL.having("output_norm.weight", dimensions=0), BadTask, "output_norm.weight: of 0 dimensions"),
    "2^31 dimensions": (SMALL.having("output_norm.weight", dimensions=2**31), BadTask, "dimensions, which may be"),
    "a dimension of 0": (SMALL.having("output_norm.weight", shape=(0,)), BadTask, "of no numbers"),
    "2^64 numbers": (SMALL.having("output_norm.weight", shape=(2**32, 2**32)), TooLarge, r"over 2\^48 numbers"),
    "beyond the file": (SMALL.having("output_norm.weight", shape=(2**20,)), BadTask, "cut short: ends at"),
    "no whole blocks": (SMALL.having("blk.0.attn_q.weight", shape=(33, 32)), BadTask, "no whole blocks of Q8_0"),
    "misaligned": (SMALL.having("output_norm.weight", offset=17), BadTask, "misaligned"),
    "overlap": (SMALL.having("output_norm.weight", offset=0), BadTask, "overlaps"),
    "type that is none": (SMALL.having("output_norm.weight", type=99), Unsupported, "type of number 99"),
    "type that is not read": (SMALL.having("blk.0.attn_q.weight", type=20), Unsupported, "type IQ4_NL is not read"),
    "tensor twice": (
        replace(SMALL, tensors=(*SMALL.tensors, SMALL.tensors[-1])),
        BadTask,
        "output_norm.weight: stands twice",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_nothing_taken_for_it(tmp_path, fault):
    file, error, said = FAULTS[fault]
    data = file if isinstance(file, bytes) else file.encode()
    tracemalloc.start()
    try:
        with pytest.raises(error, match=said):
            read(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_texts_are_bounded_in_all_arrays_together(tmp_path, monkeypatch):
    monkeypatch.setattr(header, "MAX_TEXTS", hostile.TOKENS + 1)
    with pytest.raises(TooLarge, match="merges: over 301 texts in the file"):
        read(tmp_path, SMALL)


def test_a_header_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(header, "MAX_HEADER_BYTES", 2_000)
    with pytest.raises(TooLarge, match="a header of over 2000 bytes"):
        read(tmp_path, SMALL)


def in_shards(folder, count=3, **changes):
    """A model's tensors in turn in each of the files."""
    paths = []
    for number in range(count):
        own = replace(SMALL, tensors=SMALL.tensors[number::count], metadata=SMALL.metadata if not number else ())
        said = {"split.no": number, "split.count": count, "split.tensors.count": len(SMALL.tensors), **changes}
        for key, value in said.items():
            own = own.saying(key, U32, value)
        paths.append(folder / f"tiny-{number + 1:05}-of-{count:05}.gguf")
        paths[-1].write_bytes(own.encode())
    return paths


def test_shards_are_one_model_whichever_is_named(tmp_path):
    paths = in_shards(tmp_path)
    for path in paths:
        found = open_model(path)
        assert found.architecture == "llama"
        assert found.tensors.keys() == {one.name for one in SMALL.tensors}
        assert model.name_of(path) == "tiny"
    assert {one.path for one in found.tensors.values()} == set(paths)


def test_a_missing_shard_is_named(tmp_path):
    paths = in_shards(tmp_path)
    paths[1].unlink()
    with pytest.raises(NotFound, match=r"tiny-00002-of-00003.gguf: not in"):
        open_model(paths[0])


def test_shards_must_be_those_of_one_model(tmp_path):
    with pytest.raises(BadTask, match="says it is shard 5"):
        open_model(in_shards(tmp_path, **{"split.no": 5})[0])
    with pytest.raises(BadTask, match=r"split.tensors.count: 7, the shards have 11"):
        open_model(in_shards(tmp_path, **{"split.tensors.count": 7})[0])
    path = tmp_path / "whole.gguf"
    path.write_bytes(SMALL.saying("split.count", ARRAY, (U32, [1, 2])).encode())
    with pytest.raises(BadTask, match=r"split.count: a ndarray, not a whole number"):
        open_model(path)
    with pytest.raises(TooLarge, match="one of 99999 shards"):
        open_model(tmp_path / "tiny-00001-of-99999.gguf")


def test_a_file_is_one_by_its_name_or_by_how_it_begins(tmp_path):
    (tmp_path / "sha256-abc").write_bytes(SMALL.encode())
    (tmp_path / "other").write_bytes(struct.pack("<I", 7))
    (tmp_path / "folder.gguf").mkdir()
    assert model.is_gguf(tmp_path / "sha256-abc") and model.is_gguf(tmp_path / "not-there.gguf")
    assert not model.is_gguf(tmp_path / "other") and not model.is_gguf(tmp_path / "folder.gguf")
    assert not model.is_gguf(tmp_path / "not-there")


def test_no_architecture_is_no_model(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(SMALL.without("general.architecture").encode())
    with pytest.raises(BadTask, match=r"general.architecture: missing"):
        open_model(path)
