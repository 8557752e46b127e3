"""The stage: a decoder's layers [first, last) as an actor, with a KV lane per session.

A frame carries hidden states [1, n, width], or token ids where the stage has the embedding, and `pos`, the committed
length that they build on. A `pos` below the lane's
length rewinds it: what stood there is overwritten, which is all that rejected speculation or a replay needs. Its rows
join the committed run, or are branches beyond it (`stage_request.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nodewire.errors import BadFrame, BadInput, NodewireError, NotFound
from nodewire.llm import session_checks
from nodewire.llm.cuda_graphs.runner import Graphing, hidden_around
from nodewire.llm.kv.batch_view import together
from nodewire.llm.kv.prefix_cache import Chain, Prefixes
from nodewire.llm.kv.sequence_cache import Lane, Lanes
from nodewire.llm.layers import frame_checks
from nodewire.llm.layers.embedding_head import Vocabulary
from nodewire.llm.layers.layers import Arithmetic, Layers
from nodewire.llm.stage_request import StageRequest, begin
from nodewire.protocol.model.kv_pages import PAGE
from nodewire.weights.tensorfile import DTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodewire.kind import Params
    from nodewire.llm.checkpoint.loader import Fill
    from nodewire.llm.programs.programs import StageProgram
    from nodewire.protocol.tensors.frame import Frame


@dataclass(slots=True)
class _Session:
    lane: Lane
    chain: Chain | None
    """Of its prompt, as long as its pages may be kept or found."""
    epoch: int = 0
    underway: StageRequest | None = None


class Stage:
    """An Actor that batches (nodewire.kind).

    Of a session's parameters it reads `positions`: how many there will be at most, the program's unless given; they
    have their memory from then on, so the fewer, the more sessions fit, and LongRoPE turns by them. And `prefixes`:
    among whose prompts it keeps and finds beginnings of this one's, nobody's unless given.
    """

    def __init__(
        self, program: StageProgram, fill: Fill, device: torch.device, graphing: Graphing | None = None
    ) -> None:
        """`graphing`: how steps of decoding are captured, if they are."""
        self.program = program
        self._device = device
        self._dtype = DTYPES[program.dtype]
        count = program.last - program.first
        self._layers = Layers(
            program.config,
            program.first,
            program.last,
            positions=program.positions,
            block=program.block,
            arithmetic=Arithmetic(dtype=self._dtype, device=device),
            fill=fill,
        )
        self._ends = Vocabulary(program.config, self._dtype, device, fill, program.ends)
        self._lanes = Lanes(
            program.config,
            count,
            program.slots,
            program.positions,
            self._dtype,
            device,
            in_blocks=program.kv is not None,
            beyond=graphing is not None,
        )
        hidden = hidden_around(program.config.hidden_size, self._dtype, device)
        self._graphs = graphing(self._layers, self._lanes, hidden) if graphing is not None else None
        self._prefixes = Prefixes(self._lanes, program.config.hidden_size, self._dtype)
        self._sessions: dict[str, _Session] = {}

    def open(self, session: str, params: Params) -> None:
        """Take a lane.

        Raises:
            BadInput: `positions` are none that the program has, or `prefixes` is no name.
            Busy, and as `session_checks.check`.

        """
        most = params.get("positions", self.program.positions)
        if type(most) is not int or not 1 <= most <= self.program.positions:
            raise BadInput("positions", f"not a number from 1 to {self.program.positions}")
        whose = params.get("prefixes", "")
        if not isinstance(whose, str) or len(whose) > session_checks.MAX_SESSION_NAME:
            raise BadInput("prefixes", "not a name")
        session_checks.check(session, self._sessions)
        lane = self._lanes.open(most)
        self._sessions[session] = _Session(lane, self._prefixes.chain(whose, lane) if whose else None)

    def close(self, session: str) -> None:
        state = self._sessions.pop(session, None)
        if state is not None:
            self._lanes.close(state.lane)

    def receive(self, session: str, frame: Frame[Any]) -> Sequence[Frame[Any]]:
        """Hidden states in, hidden states out with the same `seq` and `chunk`; none in, none out.

        Raises:
            NotFound: the session is not open.
            BadFrame: another edge, dtype or shape, numbers that are not finite, or places that are not in the lane.
            TooLarge: more positions than the session's.

        """
        (answer,) = self.receive_together([(session, (frame,))])
        if isinstance(answer, NodewireError):
            raise answer
        return answer

    @property
    def batches(self) -> int:
        """Frames of any number of rows go together: each session attends to its own."""
        return 2

    @property
    def block(self) -> int:
        return self.program.block

    @torch.inference_mode()
    def receive_together(
        self, calls: Sequence[tuple[str, Sequence[Frame[Any]]]]
    ) -> list[list[Frame[Any]] | NodewireError]:
        """What `receive` answers to each session's frame, or the error that it raises."""
        begun: list[StageRequest | NodewireError] = []
        for session, parts in calls:
            try:
                begun.append(self._begin(session, parts))
            except NodewireError as error:
                begun.append(error)
        self._compute([work for work in begun if isinstance(work, StageRequest)])
        return [self._answer(session, work) for (session, _), work in zip(calls, begun, strict=True)]

    def _begin(self, session: str, parts: Sequence[Frame[Any]]) -> StageRequest:
        state = self._sessions.get(session)
        if state is None:
            raise NotFound("session", "not open")
        if len(parts) != 1:
            raise BadFrame("frames", f"{len(parts)} at once")
        (frame,) = parts
        if state.underway is not None and state.underway.frame.seq == frame.seq:
            return state.underway  # what it was computed with broke off
        if frame.edge != self.program.edge_in:
            raise BadFrame("edge", f"{frame.edge[:64]}, this task consumes {self.program.edge_in}")
        width, positions = self.program.config.hidden_size, self.program.positions
        if self.program.takes_ids:
            x = self._ends.embed(frame_checks.token_ids(frame, self.program.config.vocab_size, positions)[0, :, 0])
        else:
            x = frame_checks.hidden_states(frame, self._dtype, width, positions, least=0)
        work, state.epoch = begin(frame, x, state.lane, state.epoch, closes=self.program.closes)
        state.underway = work
        self._find(state, work)
        return work

    def _find(self, state: _Session, work: StageRequest) -> None:
        """Where the work is the next page of the session's prompt, have what is kept of it stand for computing it."""
        chain = state.chain
        if chain is None or work.frame.seq != 0 or work.pos != PAGE * chain.pages or len(work.rows) != PAGE:
            state.chain = None  # what comes is no page of the prompt any more
            return
        chain.follow(work.rows)
        found = self._prefixes.find(chain, state.lane)
        if found is not None:
            work.known(found)

    def _compute(self, works: Sequence[StageRequest]) -> None:
        """All rows, in as few forwards of at most a block as it takes."""
        while left := [work for work in works if work.remaining]:
            room, parts = self.program.block, []
            for work in left:
                if n := min(work.remaining, room):
                    parts.append((work, n))
                    room -= n
            rows = [work.rows[work.done : work.done + n].to(self._device) for work, n in parts]
            made = self._made(rows[0] if len(rows) == 1 else torch.cat(rows), parts)
            for (work, _), y in zip(parts, torch.split(made, [n for _, n in parts]), strict=True):
                work.add_rows(y)

    def _made(self, rows: torch.Tensor, parts: Sequence[tuple[StageRequest, int]]) -> torch.Tensor:
        """What becomes of the works' next rows."""
        if self._graphs is not None:
            made = self._graphs.run(rows, [work.span(n) for work, n in parts])
            if made is not None:
                return made
        return self._layers.run(rows, together([work.past(n) for work, n in parts]))

    def _answer(self, session: str, work: StageRequest | NodewireError) -> list[Frame[Any]] | NodewireError:
        if isinstance(work, NodewireError):
            return work
        state = self._sessions[session]
        state.underway = None
        try:
            answer = work.answer(self.program.edge_out, self._ends.likeliest if self.program.gives_ids else None)
        except NodewireError as error:
            state.chain = None
            return error
        if state.chain is not None and work.made is not None:
            self._prefixes.keep(state.chain, state.lane, work.made)
        return [answer]
