"""Linear and mixed-integer programmes, solved by HiGHS. It is imported when something is solved, and not before.

Huangfu, Hall: Parallelizing the dual revised simplex method. Mathematical Programming Computation 2018.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from nodewire.errors import NoProvider

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Programme:
    """What to maximise, column by column; variables are at least 0. Rows are (columns, coefficients, least, most)."""

    gain: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    rows: list[tuple[Sequence[int], Sequence[float], float, float]] = field(default_factory=list)

    def variable(self, *, gain: float = 0.0, most: float = inf, whole: bool = False) -> int:
        self.gain.append(gain)
        self.most.append(most)
        self.whole.append(whole)
        return len(self.gain) - 1

    def row(
        self, columns: Sequence[int], coefficients: Sequence[float], *, least: float = -inf, most: float = inf
    ) -> None:
        self.rows.append((columns, coefficients, least, most))


@dataclass(frozen=True, slots=True)
class Solution:
    """`bound`: nothing better exists. `is_optimal`: within the gap that was asked for."""

    value: float
    bound: float
    columns: tuple[float, ...]
    is_optimal: bool


def maximise(programme: Programme, *, relaxed: bool = False, gap: float = 1e-6, nodes: int = 2_000) -> Solution:
    """The best that HiGHS finds. The search stops at `gap` or after `nodes` of its tree: by work, never by the clock.

    Raises NoProvider: no solution, or none within so many nodes.
    """
    import highspy

    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(programme.gain), len(programme.rows)
    model.sense_ = highspy.ObjSense.kMaximize
    model.col_cost_ = np.array(programme.gain)
    model.col_lower_ = np.zeros(len(programme.gain))
    model.col_upper_ = np.array(programme.most)
    model.row_lower_ = np.array([row[2] for row in programme.rows])
    model.row_upper_ = np.array([row[3] for row in programme.rows])
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in programme.rows)])
    model.a_matrix_.index_ = np.array([column for row in programme.rows for column in row[0]], dtype=np.int32)
    model.a_matrix_.value_ = np.array([value for row in programme.rows for value in row[1]], dtype=np.float64)
    is_whole = any(programme.whole) and not relaxed
    if is_whole:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        model.integrality_ = [kinds[whole] for whole in programme.whole]
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    options: dict[str, str | float] = {"output_flag": False, "threads": 1, "mip_rel_gap": gap, "mip_max_nodes": nodes}
    if is_whole:  # HiGHS 1.15 called half of what is possible optimal, after its presolve: tests/plan/place
        options["presolve"] = "off"
    for name, value in options.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
        raise NoProvider("nodes", "no placement satisfies all limits")
    value = float(info.objective_function_value)
    return Solution(
        value=value,
        bound=float(info.mip_dual_bound) if is_whole else value,
        columns=tuple(float(x) for x in solver.getSolution().col_value),
        is_optimal=solver.getModelStatus() == highspy.HighsModelStatus.kOptimal,
    )
