"""A model that is trained through its split tasks gets the gradients that it gets whole."""

import pytest
import torch

from bench.task_models import built
from nodewire.errors import BadInput
from nodewire.graph.classifier import split_classifier
from nodewire.graph.decompose import decompose
from nodewire.graph.format import Input
from nodewire.graph.gradient import SplitModel, forward
from nodewire.protocol.families import Cnn
from nodewire.train import directory
from nodewire.train.families import build, initial
from tests.kinds.digits import RECIPE, dataset

WITHIN = 1e-6
IDS = (Input("x", torch.int64, ("b", "s"), below=320),)
SIZES = {"b": 4, "s": 16}


class Hidden(torch.nn.Module):
    def __init__(self, inner, **constant):
        super().__init__()
        self.inner, self.constant = inner, constant

    def forward(self, x):
        mask = torch.ones_like(x)
        return self.inner(input_ids=x, attention_mask=mask, **self.constant).last_hidden_state


def llama():
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)  # fmt: skip
    return Hidden(LlamaModel(config), use_cache=False), IDS, SIZES, 60_000


def bert():
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=320, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=24, pad_token_id=0)  # fmt: skip
    return Hidden(BertModel(config, add_pooling_layer=False)), IDS, SIZES, 60_000


MODELS = {"llama": llama, "bert": bert}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    """A whole module, and its tasks."""
    torch.manual_seed(11)
    module, inputs, dims, target = MODELS[request.param]()
    made = built(module, inputs, dims)
    done = decompose(made.program, made.shapes, target, least_volume=16)
    tasks = {name: task.program for name, task in done.tasks.items()}
    return made, SplitModel(tasks, done.ranges)


def example(made, rows, length):
    drawn = torch.Generator().manual_seed(rows * 100 + length)
    return torch.randint(0, 320, (rows, length), generator=drawn)


@pytest.mark.parametrize(("rows", "length"), [(1, 16), (2, 7)])
def test_gradients_through_split_tasks_are_those_of_the_whole_model(model, rows, length):
    made, split = model
    assert len(split.tasks) >= 3
    x = example(made, rows, length)
    cotangent = torch.randn(rows, length, 32, generator=torch.Generator().manual_seed(1))
    made.module.zero_grad()
    whole = made.module(x)
    whole.backward(cotangent)
    outputs = split.forward(made.weights, {"x": x})
    assert torch.allclose(outputs["out"], whole.detach(), atol=WITHIN, rtol=0)
    found = split.backward({"out": cotangent})
    eager = {name: p.grad for name, p in made.module.named_parameters() if p.grad is not None}
    assert set(found) >= set(eager)  # and of buffers, which are weights of a task like the others
    for name, gradient in eager.items():
        scale = max(1.0, float(gradient.abs().max()))
        assert float((found[name] - gradient).abs().max()) <= WITHIN * scale, name


def test_a_step_along_the_gradients_lowers_the_loss(model):
    made, split = model
    x = example(made, 1, 16)
    weights = dict(made.weights)
    losses = []
    for _ in range(3):
        out = split.forward(weights, {"x": x})["out"]
        losses.append(float((out**2).mean()))
        gradients = split.backward({"out": 2 * out / out.numel()})
        weights |= {name: weights[name] - 0.05 * gradient for name, gradient in gradients.items()}
    assert losses[2] < losses[1] < losses[0]


def test_a_registered_convolutional_net_is_trained_through_its_split_tasks(tmp_path):
    family = Cnn(name="cnn", channels=1, height=8, width=8, filters=(32, 64, 64), pool=True, classes=10)
    recipe = RECIPE.model_copy(update={"family": family})
    directory.save(tmp_path, recipe, initial(recipe))
    made = split_classifier(tmp_path, 200_000, tmp_path / "blobs", max_batch=16)
    split, weights = SplitModel.of(made.manifest, made.blobs)
    assert len(split.tasks) >= 2
    rows = min(3, next(iter(split.tasks.values())).volume)
    x, y = dataset()["x"][:rows], dataset()["y"][:rows]
    whole = {name: tensor.clone().requires_grad_() for name, tensor in initial(recipe).items()}
    loss = build(recipe, whole).loss((x, y))
    loss.backward()
    scores = split.forward(weights, {"x": x})["scores"].requires_grad_()
    ours = torch.nn.functional.cross_entropy(scores, y)
    ours.backward()
    found = split.backward({"scores": scores.grad})
    assert abs(float(loss.detach() - ours.detach())) <= WITHIN
    assert set(found) == set(whole)
    for name, tensor in whole.items():
        assert float((found[name] - tensor.grad).abs().max()) <= WITHIN, name


def test_a_gradient_of_no_output_and_a_missing_input_are_refused_by_name(model):
    made, split = model
    with pytest.raises(BadInput, match=r"^x: an input of"):
        split.forward(made.weights, {})
    program = list(split.tasks.values())[-1]
    arrived = {(i.edge, i.name): torch.ones([{"b": 1, "s": 4}.get(n, n) for n in i.shape]) for i in program.inputs}
    arrived = {place: t.to(i.dtype) for (place, t), i in zip(arrived.items(), program.inputs, strict=True)}
    passed = forward(program, made.weights, arrived)
    with pytest.raises(BadInput, match=r"^nowhere"):
        passed.backward({("e", "nowhere"): torch.zeros(1)})
