"""What a provider that follows demand holds, and why, on disk: a restart takes it up again, and `doctor` shows it."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger("nodewire.provider")
FILE = "follow.json"


@dataclass(frozen=True, slots=True)
class FollowedTasks:
    """Tasks of a manifest with their prices, held since an epoch; for how many epochs others have been better."""

    address: str
    digest: str
    prices_msat: dict[str, int]
    since: int
    wanted: int
    why: str

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(self.prices_msat)


def read(state: Path) -> FollowedTasks | None:
    """None where nothing was held; a file that is none is as good as that."""
    path = state / FILE
    try:
        said = json.loads(path.read_text())
        prices = {str(task): int(price) for task, price in said["prices_msat"].items()}
        texts = (str(said["address"]), str(said["digest"]))
        found = FollowedTasks(*texts, prices, int(said["since"]), int(said["wanted"]), str(said["why"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s is passed over: %s", path, error)
        return None
    return found if prices and min(prices.values()) >= 0 else None


def write(state: Path, followed: FollowedTasks | None) -> None:
    """Raises OSError."""
    path = state / FILE
    if followed is None:
        path.unlink(missing_ok=True)
        return
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(asdict(followed), indent=1) + "\n")
    scratch.replace(path)
