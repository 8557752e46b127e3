"""What a machine is measured with: as much as memory and time have room for."""

import pytest
import torch

from kinds import profile_worker
from nodewire.kind import Limits


@pytest.mark.parametrize(("longest_s", "memory", "side"), [(60.0, 2**25, 512), (60.0, 2**23, 256), (0.0, 2**25, 64)])
def test_a_product_that_would_take_too_long_is_made_smaller(monkeypatch, longest_s, memory, side):
    monkeypatch.setattr(profile_worker, "_LONGEST_S", longest_s)
    machine = profile_worker.load(profile_worker.ENGINE, b"", [], Limits(memory))
    assert machine._matrix(torch.float32).shape == (side, side)
