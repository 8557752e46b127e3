"""The two operators whose sizes the data decide: rows are sent to the experts that were chosen for them, and come back.

    select_rows(x [.., w], chosen [.., k], first, last) -> [n, w]      the rows that chose one of first .. last - 1
    scatter_rows(rows [n, w], chosen [.., k], first, last) -> [.., w]  back to their places, zeros in the others

Leading dimensions count as rows, in order; both have the same number of them. Which rows these are follows from
`chosen` alone, so both are deterministic, and n is at most the number of rows there are. On the meta device, where
there are no values, it is that: what is verified is the most that can happen.
"""

from __future__ import annotations

import torch


def select_rows(x: torch.Tensor, chosen: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Raises ValueError where x and `chosen` have not the same number of rows."""
    rows = _rows(chosen, first, last)
    table = x.reshape(-1, x.shape[-1])
    if table.shape[0] != rows:
        raise ValueError(f"{table.shape[0]} rows, {rows} choices")
    if chosen.is_meta:
        return table.new_empty(table.shape)
    return table[_mask(chosen, first, last)]


def scatter_rows(rows: torch.Tensor, chosen: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Raises ValueError where there are more or fewer rows than chose one of these."""
    count = _rows(chosen, first, last)
    if rows.dim() != 2:
        raise ValueError(f"rows of rank {rows.dim()}")
    made = rows.new_zeros(count, rows.shape[1])
    if not chosen.is_meta:
        mask = _mask(chosen, first, last)
        if int(mask.sum()) != rows.shape[0]:
            raise ValueError(f"{rows.shape[0]} rows, {int(mask.sum())} chosen")
        made = made.masked_scatter(mask[:, None], rows) if rows.requires_grad else _placed(made, mask, rows)
    return made.reshape(*chosen.shape[:-1], rows.shape[1])


def _placed(made: torch.Tensor, mask: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    made[mask] = rows
    return made


def _rows(chosen: torch.Tensor, first: int, last: int) -> int:
    if type(first) is not int or type(last) is not int:  # a tensor would be compared with all choices, in any shape
        raise ValueError("choices from and to no numbers")
    if chosen.dtype != torch.int64 or chosen.dim() < 1:
        raise ValueError("choices are not int64 [.., k]")
    return chosen.shape[:-1].numel()


def _mask(chosen: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """[rows] bool: whether a row chose one of first .. last - 1."""
    flat = chosen.reshape(-1, chosen.shape[-1])
    return torch.logical_and(flat >= first, flat < last).any(dim=1)
