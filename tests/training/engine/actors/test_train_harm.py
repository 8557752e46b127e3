"""Which doubted results the next weights wait for."""

import pytest
import torch

from nodewire.training.engine.actors.harm import Harm

NOISE = torch.linspace(-0.1, 0.1, 101, dtype=torch.float64)
BEFORE = 1.0 + NOISE


def harm(deltas: dict[int, float]) -> Harm:
    """Of a round whose next weights have a loss of as much more as its results' mean says."""

    def without(indices):
        left = [delta for index, delta in deltas.items() if index not in indices]
        return BEFORE + sum(left) / len(left) + 0.1 * NOISE.flip(0)

    return Harm(lambda: BEFORE, without)


def test_who_drifts_as_all_do_harms_nothing():
    round_ = harm({0: -0.3, 1: -0.3, 2: -0.3})
    assert not round_.is_worse(0, True)


def test_without_whom_the_next_weights_are_better_does_harm():
    round_ = harm({0: -0.3, 1: -0.3, 2: 0.2})
    assert round_.is_worse(2, True)
    assert not round_.is_worse(0, True)


def test_who_makes_the_weights_worse_together_does_harm_each():
    round_ = harm({0: 0.3, 1: 0.3})
    assert round_.is_worse(0, True) and round_.is_worse(1, True)


def test_who_is_alone_is_compared_with_the_weights_before():
    assert harm({0: 0.3}).is_worse(0, False)
    assert not harm({0: -0.3}).is_worse(0, False)


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_what_has_no_loss_does_harm(loss):
    assert Harm(lambda: BEFORE, lambda indices: torch.full((101,), loss, dtype=torch.float64)).is_worse(0, True)
