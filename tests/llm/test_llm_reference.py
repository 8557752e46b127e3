"""A stage of narrower numbers computed in float32: what oracles hold results against."""

import torch

from nodewire.llm.checkpoint.splitter import DecoderOptions, split_decoder
from nodewire.llm.entry import load
from nodewire.protocol.model.manifest import REFERENCE_ENGINE, Engine
from nodewire.protocol.tensors.frame import Frame
from tests.llm.llm_models import PLAIN, ROOMY, hidden_frame, make_model


def test_a_bfloat16_stages_reference_is_float32_and_closer_to_the_truth(tmp_path):
    made = split_decoder(
        make_model(tmp_path / "m", PLAIN, torch.bfloat16),
        2**20,
        tmp_path,
        slots=2,
        options=DecoderOptions(dtype="bfloat16"),
    )
    task = next(task for task in made.manifest.tasks if task.engine == "decoder.stage")
    program = made.blobs[task.program.sha256].read_bytes()
    weights = [made.blobs[blob.sha256] for blob in task.weights]
    edge = next(edge.name for edge in made.manifest.inputs(task.name))
    states = hidden_frame(16, 0, edge=edge).tensors[0].bfloat16()
    answers = {}
    for engine in ("decoder.stage", REFERENCE_ENGINE):
        actor = load(engine, program, weights, ROOMY)
        actor.open("s", {})
        (out,) = actor.receive("s", Frame(edge, 0, (states,), {"pos": 0, "chunk": 0, "tokens": 16}))
        answers[engine] = out.tensors[0]
        actor.close("s")
    assert answers["decoder.stage"].dtype == torch.bfloat16
    assert answers[REFERENCE_ENGINE].dtype == torch.float32
    gap = (answers["decoder.stage"].float() - answers[REFERENCE_ENGINE]).norm() / answers[REFERENCE_ENGINE].norm()
    assert 1e-4 < gap < 0.05


def test_no_manifest_can_name_the_reference_engine():
    assert REFERENCE_ENGINE not in Engine.__args__
