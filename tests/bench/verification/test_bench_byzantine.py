"""What bench.verification.byzantine reads out of a cheater's log, and that its cheater has something to alter."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from bench.verification import byzantine
from nodewire.protocol.tensors.frame import Frame
from processes.market import Market
from tests.protocol.documents import manifest

sys.path.append(str(byzantine.FAULTS_FOLDER))
from nodewire_faults import strike


@pytest.mark.parametrize("fewer", [{}, byzantine.FEWER], ids=["in every stage", "a driver"])
def test_a_cheater_holds_the_driver_and_a_stage(fewer):
    market: Any = Market.__new__(Market)
    names = ["driver", *(f"stage.{number}" for number in range(byzantine.TASKS - 1))]
    market.models = {"pycoder": {"tasks": [{"name": name} for name in names]}}
    market._size, market._holders, market._fewer = byzantine.PROVIDERS, byzantine.HOLDERS, fewer
    places = [[task for _, task in held] for held in market._spread()]
    assert "driver" in places[byzantine.CHEATER]
    assert len(places[byzantine.CHEATER]) > 1
    counts = Counter(task for held in places for task in held)
    assert counts == {name: fewer.get(name, byzantine.HOLDERS) for name in names}


def test_altered_frames_of_a_log_are_chunks_of_the_tasks_that_put_them_out():
    """A prompt's frame is chunk 0; what is altered in no job, such as weights, names no chunk."""
    of = manifest()
    edge = next(edge for edge in of.edges if edge.source == "stage.0")
    request = "ab" * 32
    log = "\n".join(
        [
            f"12:00:00 I the cheat altered {request} {edge.name}/0",
            f"the cheat altered {request} {edge.name}/{of.chunk}",
            f"the cheat altered {request} {edge.name}/{of.chunk + 1}",
            "the cheat altered weights model.norm.weight",
        ]
    )
    assert byzantine._altered(log, of) == {(request, "stage.0", chunk) for chunk in (0, 1, 2)}


def test_an_altered_token_is_said_of_its_own_frame(capsys):
    """The row of the next position, which a driver puts out before it, belongs to the next number."""
    strike.note_choice("token 5 at 9 to 6")
    strike.say_choices("ab" * 32, [Frame("hidden.0", 1, (), {}), Frame("tokens", 0, (), {})])
    strike.say_choices("ab" * 32, [Frame("hidden.0", 2, (), {}), Frame("tokens", 1, (), {})])
    assert strike.FRAME.findall(capsys.readouterr().err) == [("ab" * 32, "tokens", "0")]
