"""A trained classifier as graph tasks: registered, loaded by the engine that serves it, and as right as in training."""

from __future__ import annotations

import pytest
import torch

from kinds import k8843_worker
from nodewire.errors import BadInput, NotFound, OverMemory, Unsupported
from nodewire.graph.registration.classifier import program_of, split_classifier
from nodewire.kind import Limits, Registration
from nodewire.protocol.model.families import Cnn, Decoder, Linear, Mlp
from nodewire.protocol.model.manifest import CUSTOMER
from nodewire.protocol.tensors.frame import Frame
from nodewire.training.engine.families import build, initial
from nodewire.training.engine.models import directory
from tests.kinds.digits import RECIPE, dataset

torch.set_num_threads(1)
FAMILIES = {
    "linear": Linear(name="linear", inputs=64, classes=10),
    "relu": RECIPE.family,
    "tanh": Mlp(name="mlp", inputs=64, hidden=(32, 16), classes=10, activation="tanh"),
    "gelu": Mlp(name="mlp", inputs=64, hidden=(32,), classes=10, activation="gelu"),
    "cnn": Cnn(name="cnn", channels=1, height=8, width=8, filters=(8, 16), classes=10),
    "pooled": Cnn(name="cnn", channels=1, height=8, width=8, filters=(8, 4, 4), kernel=5, pool=True, classes=10),
    "odd": Cnn(name="cnn", channels=4, height=2, width=8, filters=(3,), kernel=1, pool=True, classes=10),
}


def served(made: Registration, x: torch.Tensor) -> torch.Tensor:
    """What the manifest's tasks make of rows, each loaded as a provider's worker loads it."""
    actors, waiting = {}, []
    for task in made.manifest.tasks:
        paths = [made.blobs[one.sha256] for one in task.weights]
        program = made.blobs[task.program.sha256].read_bytes()
        actors[task.name] = k8843_worker.load(task.engine, program, paths, Limits(task.memory_bytes))
        actors[task.name].open("s", {})
        waiting += [
            Frame(e.name, 0, (x,), {"chunk": 0}) for e in made.manifest.inputs(task.name) if e.source == CUSTOMER
        ]
    targets = {edge.name: edge.target for edge in made.manifest.edges}
    while waiting:
        frame = waiting.pop(0)
        if targets[frame.edge] == CUSTOMER:
            return frame.tensors[0]
        waiting += actors[targets[frame.edge]].receive("s", frame)
    raise AssertionError("no scores")


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_served_is_what_was_trained(tmp_path, name):
    recipe = RECIPE.model_copy(update={"family": FAMILIES[name]})
    theta, x = initial(recipe), dataset()["x"][:37]
    directory.save(tmp_path, recipe, theta)
    made = split_classifier(tmp_path, 4 * 10**6, tmp_path / "blobs", name="digits")
    assert made.manifest.mode == "run"
    scores = served(made, x)
    wanted = build(recipe, theta).outputs((x,))
    if isinstance(recipe.family, Cnn):
        torch.testing.assert_close(scores, wanted)
    else:
        assert torch.equal(scores, wanted)


def test_a_model_larger_than_a_piece_is_cut_between_its_layers(tmp_path):
    family = Mlp(name="mlp", inputs=64, hidden=(256, 256, 256), classes=10)
    recipe = RECIPE.model_copy(update={"family": family})
    theta, x = initial(recipe), dataset()["x"][:5]
    directory.save(tmp_path, recipe, theta)
    made = split_classifier(tmp_path, 420_000, tmp_path / "blobs")
    assert len(made.manifest.tasks) >= 2
    assert all(task.memory_bytes <= 420_000 for task in made.manifest.tasks)
    assert torch.equal(served(made, x), build(recipe, theta).outputs((x,)))
    with pytest.raises(OverMemory):
        split_classifier(tmp_path, 2_000, tmp_path / "blobs")


def test_what_is_no_classifier_is_refused_by_name(tmp_path):
    with pytest.raises(NotFound, match=r"recipe\.json"):
        split_classifier(tmp_path, 10**6, tmp_path / "blobs")
    directory.save(tmp_path, RECIPE, initial(RECIPE))
    (tmp_path / "recipe.json").write_text(RECIPE.model_copy(update={"family": FAMILIES["tanh"]}).to_json())
    with pytest.raises(BadInput, match=r"layers\.1\.weight"):
        split_classifier(tmp_path, 10**6, tmp_path / "blobs")
    sizes = {"width": 8, "inner": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "positions": 8}
    with pytest.raises(Unsupported, match="decoder is no classifier"):
        program_of(Decoder(name="decoder", tokens="byte", **sizes), 8, 1)
