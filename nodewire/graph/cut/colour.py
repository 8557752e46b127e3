"""Nodes coloured by the set of the model's inputs that they depend on: what shares no input can run at the same time.

CLIP's image tower depends on the pixels, its text tower on ids and mask, and the rest on all of them. Colours grow
along edges, so groups of them never depend on each other in a circle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def groups(colours: Sequence[int], users: Sequence[Sequence[int]], heavy: Mapping[int, bool]) -> list[list[int]]:
    """Nodes in groups, in an order in which these can run; one group where nothing is parallel.

    `colours[v]` has a bit for each input that node v depends on, `users[v]` are above v, and `heavy` says of a colour
    whether its nodes are worth tasks of their own.
    """
    branch = _branches([colour for colour, is_heavy in heavy.items() if is_heavy])
    if len(set(branch.values())) < 2:
        return [list(range(len(colours)))]
    met: dict[int, frozenset[int]] = {}
    for colour in set(colours):
        met[colour] = frozenset(b for own, b in branch.items() if own & colour == own)
    group = [met[colour] for colour in colours]
    for v in reversed(range(len(colours))):
        behind = {group[w] for w in users[v]}
        if not group[v] and len(behind) == 1:  # light, and for one branch only
            (group[v],) = behind
    found: dict[frozenset[int], list[int]] = {}
    for v, own in enumerate(group):
        found.setdefault(own, []).append(v)
    return [found[key] for key in sorted(found, key=lambda key: (len(key), found[key][0]))]


def _branches(heavy: Sequence[int]) -> dict[int, int]:
    """Heavy colours, by number of their branch; those where two branches meet are of none.

    A colour within another is of its branch: a text tower depends on ids alone before attention has seen the mask.
    """
    alone = [c for c in heavy if not _joins(c, heavy)]
    branch = {c: c for c in alone}
    for inner in alone:
        for outer in alone:
            if inner & outer == inner and branch[inner] != branch[outer]:
                old, new = branch[inner], branch[outer]
                branch = {c: new if b == old else b for c, b in branch.items()}
    return branch


def _joins(colour: int, heavy: Sequence[int]) -> bool:
    inside = [c for c in heavy if c & colour == c and c != colour]
    return any(a & b not in (a, b) for a in inside for b in inside)
