"""The memory that a manifest states covers what PyTorch allocates while a task loads and serves its longest prompt."""

import json

import pytest
import torch
from llm_models import PLAIN, ROOMY, make_model
from torch.profiler import ProfilerActivity, profile

from nodewire.llm.actor import load
from nodewire.llm.split import split_decoder
from nodewire.protocol.frame import Frame

WIDE_MLP = PLAIN | {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 512}
MANY_HEADS = WIDE_MLP | {"intermediate_size": 64, "num_attention_heads": 16, "num_key_value_heads": 16}


def peak_bytes(run, trace):
    """The most bytes that were allocated at one moment of `run()`, above those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    profiler.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    return most


@pytest.mark.parametrize("shape", [WIDE_MLP, MANY_HEADS], ids=["wide mlp", "many heads"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_stage_stays_within_its_stated_memory(tmp_path, shape, dtype):
    shape = shape | {"max_position_embeddings": 1024}
    directory = make_model(tmp_path / "model", shape, torch.bfloat16)
    registration = split_decoder(directory, 10_000_000, tmp_path / "out", slots=2, dtype=dtype)
    for task in registration.manifest.tasks[1:]:
        program = registration.blobs[task.program.sha256].read_bytes()
        weights = [registration.blobs[blob.sha256] for blob in task.weights]
        edge = registration.manifest.inputs(task.name)[0].name
        hidden = torch.randn(1, 1024, 128).to(getattr(torch, dtype))
        frame_bytes = hidden.nbytes  # the input is there already

        def serve(task=task, program=program, weights=weights, edge=edge, hidden=hidden):
            stage = load(task.engine, program, weights, ROOMY)
            stage.open("s", {})
            stage.receive("s", Frame(edge, 0, (hidden,), {"pos": 0, "chunk": 0}))

        used = peak_bytes(serve, tmp_path / "trace.json") + frame_bytes
        assert 0.6 * task.memory_bytes < used <= task.memory_bytes
