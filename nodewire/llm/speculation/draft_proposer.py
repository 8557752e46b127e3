"""Guesses of a small decoder that runs beside the driver.

It draws with the session's own seed and positions, so where it gives the large model's probabilities it says the large
model's tokens, at every temperature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from nodewire.errors import BadTask
from nodewire.llm.speculation.proposer import Candidate
from nodewire.llm.tokens.sampling_params import ranked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from nodewire.llm.tokens.sampler import Sampler

_MOST = 5
_STEPS = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)  # of the drafter's own probability of what it says
_MISSED = (0.4, 0.15, 0.08, 0.04)  # how the large model's other choices are shared among the next ranks, at first


class Decoder(Protocol):
    """A whole decoder with one lane (`reference.LocalDecoder`)."""

    positions: int

    def logits(self, ids: Sequence[int], pos: int = 0) -> Tensor: ...


class SmallModel:
    """A decoder that the drafters of several sessions share.

    Each has the lane of one of `decoders` while it is among those that were asked last, and with it what was computed
    of its text.
    """

    def __init__(self, *decoders: Decoder) -> None:
        """`decoders` are the same model, each with a lane of its own."""
        self.positions = decoders[0].positions
        self._held = [_LaneText(decoder) for decoder in decoders]  # the one that was asked last stands last

    def after(self, text: list[int], whose: object = None) -> Tensor:
        """float32 [vocab] after a text of `whose`, of which only what its lane does not hold is computed."""
        held = next((one for one in self._held if one.whose is whose), self._held[0])
        self._held.remove(held)
        self._held.append(held)
        held.whose = whose
        return held.after(text)


class _LaneText:
    """A lane, and the text that it holds."""

    def __init__(self, decoder: Decoder) -> None:
        self.whose: object = None
        self._decoder = decoder
        self._text: list[int] = []

    def after(self, text: list[int]) -> Tensor:
        same = min(len(text) - 1, len(self._text))
        if self._text[:same] != text[:same]:
            same = next(at for at, (held, token) in enumerate(zip(self._text, text, strict=False)) if held != token)
        logits = self._decoder.logits(text[same:], same)
        self._text = text
        return logits


@dataclass(frozen=True, slots=True)
class Path:
    """Guesses after the first `start` tokens of the text."""

    start: int
    tokens: tuple[int, ...] = ()


class SmallModelDrafter:
    """A Drafter of one session, whose `sampler` says how tokens are drawn; `vocab_size` is the large model's."""

    def __init__(self, model: SmallModel, sampler: Sampler, vocab_size: int) -> None:
        self._model, self._sampler, self._vocab_size = model, sampler, vocab_size
        self._text: list[int] = []

    def accept(self, token: int) -> None:
        self._text.append(token)

    def root(self) -> Path:
        return Path(len(self._text))

    def after(self, place: Path, token: int) -> Path:
        return Path(place.start, (*place.tokens, token))

    def candidates(self, place: Path) -> Sequence[Candidate]:
        """As the Drafter's. Raises BadTask: the small model has other tokens than the large one."""
        text = [*self._text[: place.start], *place.tokens]
        if not text or len(text) > self._model.positions:
            return ()
        logits = self._model.after(text, self)
        if len(logits) != self._vocab_size:
            raise BadTask("draft", f"a vocabulary of {len(logits)}, the model's is {self._vocab_size}")
        accepted = len(self._text) - place.start
        logits = self._sampler.bent(logits, place.tokens[max(0, accepted) :])
        sampling = self._sampler.sampling
        tokens = ranked(logits, sampling, len(text), _MOST)
        chance = float((logits / (sampling.temperature or 1.0)).softmax(0)[tokens[0]])
        step = sum(chance >= least for least in _STEPS)
        first = 0.2 + 0.7 * chance
        odds = [first, *((1 - first) * share for share in _MISSED)]
        return [
            Candidate(token, step * _MOST + rank, prior)
            for rank, (token, prior) in enumerate(zip(tokens, odds, strict=False))
        ]
