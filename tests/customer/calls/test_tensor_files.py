"""A customer's files: every dtype there and back, and what is no file of tensors is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nodewire.customer.calls.arrays import raw
from nodewire.customer.calls.tensor_files import read, write
from nodewire.errors import BadConfig, BadInput

TENSORS = {
    "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "b": torch.tensor([[1, 2], [3, 4]]),
    "c": torch.tensor([True, False]),
    "d": torch.zeros(0, 3),
    "e": torch.tensor(2.5),
    "f": torch.tensor([1, 2, 3], dtype=torch.uint8),
}


def test_what_is_written_is_what_was_read_and_any_reader_reads_it(tmp_path):
    save_file(TENSORS, tmp_path / "in.safetensors")
    found = read(tmp_path / "in.safetensors")
    write(tmp_path / "out.safetensors", found)
    again = load_file(tmp_path / "out.safetensors")
    assert again.keys() == TENSORS.keys()
    assert all(
        torch.equal(again[name], tensor) and again[name].dtype == tensor.dtype for name, tensor in TENSORS.items()
    )
    assert {name: array.dtype for name, array in found.items()} == {
        "a": "bfloat16", "b": "int64", "c": "bool", "d": "float32", "e": "float32", "f": "uint8",
    }  # fmt: skip


def test_numpys_files_are_read_and_the_one_array_of_a_npy_is_called_as_the_file(tmp_path):
    x, ids = np.ones((2, 3), np.float32), np.arange(2)
    np.savez(tmp_path / "both.npz", x=x, ids=ids)
    np.save(tmp_path / "pixels.npy", x)
    found = read(tmp_path / "both.npz")
    assert (raw("x", found["x"]).shape, raw("ids", found["ids"]).dtype) == ((2, 3), "int64")
    assert list(read(tmp_path / "pixels.npy")) == ["pixels"]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".npy"])
@pytest.mark.parametrize("content", [b"", b"no tensors at all", b"\x80\x04\x95" + bytes(40), b"PK\x03\x04" + bytes(9)])
def test_what_is_no_file_of_tensors_is_refused(tmp_path, suffix, content):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not a safetensors"):
        read(path)


def test_a_file_that_is_cut_short_is_told_where_it_ends(tmp_path):
    path = tmp_path / "short.safetensors"
    save_file(TENSORS, path)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(BadInput, match=f"cut short: tensors end at byte {size}, the file at {size - 3}"):
        read(path)


def test_pickled_objects_are_not_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BadInput):
        read(tmp_path / "x.npy")


def test_a_file_that_is_not_there_and_a_dtype_that_no_model_takes_are_told(tmp_path):
    with pytest.raises(BadConfig, match="cannot be read"):
        read(tmp_path / "none.safetensors")
    with pytest.raises(BadConfig, match="cannot be written"):
        write(tmp_path / "nowhere" / "x.safetensors", {})
    save_file({"x": torch.zeros(2, dtype=torch.float64)}, tmp_path / "x.safetensors")
    with pytest.raises(BadInput, match="F64"):
        read(tmp_path / "x.safetensors")
