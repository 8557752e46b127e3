"""What a training leaves behind: a folder with the weights, the model ready to be served, the curve and a summary."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from nodewire.errors import BadInput

if TYPE_CHECKING:
    from nodewire.training.customer.api import TrainingResult
    from nodewire.training.protocol.recipe import Recipe

WEIGHTS, CURVE, SUMMARY, MODEL = "weights.safetensors", "curve.svg", "summary.json", "model"
TRANSCRIPT = "transcript.json"


def place(out: Path) -> Path:
    """Where results go, made and seen to be writable before anything is paid.

    It is a folder, or with a name that ends in .safetensors a file for the weights alone.

    Raises:
        BadInput: it cannot be written to.

    """
    folder = out.parent if _is_file(out) else out
    try:
        if _is_file(out) and not folder.is_dir():
            raise BadInput("--out", f"the folder {folder} does not exist")
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise BadInput("--out", f"{folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise BadInput("--out", f"{folder} cannot be written to")
    return out


def model_of(out: Path) -> Path | None:
    """Where the whole model goes, as it is registered; nowhere if `out` is a file for the weights alone."""
    return None if _is_file(out) else out / MODEL


def summary(recipe: Recipe, done: TrainingResult) -> dict[str, Any]:
    """All that happened, as plain data."""
    state, history = done.state, done.history
    return {
        "job": done.job,
        "recipe": recipe.name,
        "digest": recipe.digest(),
        "rounds": state.rounds,
        "losses": [loss / 1_000_000 for loss in state.losses],
        "curve": [
            {
                "round": point.round,
                "loss": point.loss,
                "up_bytes": point.up_bytes,
                "down_bytes": point.down_bytes,
                "paid_msat": point.paid_msat,
                "fees_msat": point.fees_msat,
            }
            for point in history.points
        ],
        "requests": list(state.requests),
        "providers": sorted({provider for _, provider in state.debts}),
        "undone": [
            {"round": event.round, "providers": list(dict.fromkeys(provider for _, provider in event.failed))}
            for event in history.undone
        ],
        "failures": [{"provider": provider, "reason": reason} for provider, reason in state.failures],
        "up_bytes": history.up_bytes,
        "down_bytes": history.down_bytes,
        "paid_msat": done.paid_msat,
        "fees_msat": done.fees_msat,
        "owed_msat": done.owed_msat,
    }


def write(out: Path, recipe: Recipe, done: TrainingResult, *, closed: bool = False) -> dict[str, Any]:
    """Write it all to `out`; the summary, with where everything stands. `closed`: the transcript opens nothing."""
    if _is_file(out):
        _replace(out, done.weights)
        transcript = _transcribed(out.with_suffix(".transcript.json"), done, closed=closed)
        return {**summary(recipe, done), "weights": str(out), **transcript}
    said = {**summary(recipe, done), "out": str(out), "weights": str(out / WEIGHTS)}
    said |= _transcribed(out / TRANSCRIPT, done, closed=closed)
    if (before := trained(out).get("registered")) and _holds(out / WEIGHTS, done.weights):
        said["registered"] = before
    _replace(out / WEIGHTS, done.weights)
    if done.history.points:
        from nodewire.cli.common.training_plot import plot

        plot(done.history.points, recipe.name, out / CURVE)
    note(out, said)
    return said


def _transcribed(path: Path, done: TrainingResult, *, closed: bool) -> dict[str, str]:
    """For its owner's eyes: an open transcript has the keys of all shards."""
    if done.transcript is None:
        return {}
    _replace(path, (done.transcript.closed() if closed else done.transcript).to_json().encode(), mode=0o600)
    return {"transcript": str(path)}


def note(out: Path, said: dict[str, Any]) -> None:
    """Write the summary, where there is a folder for it."""
    if not _is_file(out):
        _replace(out / SUMMARY, orjson.dumps(said, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def trained(out: Path) -> dict[str, Any]:
    """The summary that a training left in `out`; nothing where there is none, or another file of its name."""
    try:
        said = orjson.loads((out / SUMMARY).read_bytes())
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _is_file(out: Path) -> bool:
    return out.suffix == ".safetensors" and not out.is_dir()


def _replace(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Whole or as before, whatever happens meanwhile."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    part.touch(mode=mode)
    part.write_bytes(data)
    part.replace(path)
