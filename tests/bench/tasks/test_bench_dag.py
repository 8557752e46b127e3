"""The encoder of `bench.verification.byzantine`'s calls is cut into the tasks that its trials reckon with."""

from __future__ import annotations

from bench.tasks import dag
from nodewire.graph.registration.encoder_splitter import split_encoder
from nodewire.protocol.encoding.byte_sizes import parse_size


def test_the_encoder_is_cut_into_twelve_tasks(tmp_path):
    made = split_encoder(dag.make(tmp_path / "encoder"), parse_size(dag.TARGET), tmp_path, name="encoder")
    assert len(made.manifest.tasks) == dag.TASKS
