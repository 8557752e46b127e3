from pathlib import Path

import pytest

from tests.swarm.swarm_process import NAMES, Swarm


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    """Three nodes that are ready, one layer each."""
    from tests.kinds.llama import make_llama
    from tests.market.tiny_models import make_decoder

    folder: Path = tmp_path_factory.mktemp("swarm")
    make_decoder(folder / "llama")
    (folder / "other").mkdir()
    make_llama(folder / "other", max_position_embeddings=400, seed=6, eos_token_id=None)
    made = Swarm(folder)
    for name in NAMES:
        made.begin(name)
    try:
        for name in NAMES:
            made.ready(name)
        yield made
    finally:
        for name in list(made.daemons):
            made.stop(name)
