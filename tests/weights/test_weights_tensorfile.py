"""Tensors are written in pieces, out of parts, in other dtypes: as the library writes them whole."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from nodewire.errors import BadTask, NotFound
from nodewire.weights import tensorfile
from nodewire.weights.directory import stored_tensors
from nodewire.weights.tensorfile import AssembledTensor, elements, read_header, write

F32, BF16 = torch.float32, torch.bfloat16


def test_what_is_written_in_pieces_is_the_file_that_the_library_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorfile, "PIECE_BYTES", 64)
    tensors = {
        "wide": torch.randn(37, 5),
        "narrow": torch.randn(7, 3).to(BF16),
        "count": torch.arange(9),
        "mask": torch.tensor([True, False, True]),
        "alone": torch.tensor(2.5),
        "none": torch.zeros(0, 4),
    }
    save_file(tensors, tmp_path / "library")
    stored = read_header(tmp_path / "library")
    digest, path = write(tmp_path, stored.items())
    assert path.read_bytes() == (tmp_path / "library").read_bytes()
    held = {name: AssembledTensor(t.dtype, tuple(t.shape), (t,)) for name, t in tensors.items()}
    assert write(tmp_path, held.items())[0] == digest


def test_parts_are_put_end_to_end_sliced_and_converted(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorfile, "PIECE_BYTES", 24)
    a, b = torch.randn(5, 4).to(torch.float16), torch.randn(3, 4)
    save_file({"a": a}, tmp_path / "a")
    stored = read_header(tmp_path / "a")["a"]
    made = AssembledTensor(F32, (5, 4), (elements(stored, 4, 12), elements(b, 0, 12)))
    _, path = write(tmp_path, [("both", made)])
    assert torch.equal(load_file(path)["both"], torch.cat([a[1:3].float(), b]))


def test_a_tensor_that_its_parts_do_not_fill_is_refused_by_name(tmp_path):
    with pytest.raises(BadTask, match=r"^both: its parts"):
        write(tmp_path, [("both", AssembledTensor(F32, (5, 4), (torch.zeros(3, 4),)))])


def test_a_directory_without_weights_is_refused(tmp_path):
    with pytest.raises(NotFound, match=r"model\.safetensors"):
        stored_tensors(tmp_path)
