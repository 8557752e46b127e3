"""Models are made once for the whole run; torch keeps to one thread."""

import pytest
import torch

from bench.tasks.tiny_decoders import make_family
from nodewire.llm.checkpoint.splitter import split_decoder
from nodewire.llm.local.reference import LocalDecoder
from tests.llm.llm_models import PLAIN, ROOMY, VARIANTS, Ring, make_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """The directory of the plainest model."""
    return make_model(tmp_path_factory.mktemp("plain"), PLAIN, torch.float32)


@pytest.fixture(scope="session", params=list(VARIANTS))
def model(request, tmp_path_factory):
    """The directory of each variant in turn."""
    shape, dtype = VARIANTS[request.param]
    return make_model(tmp_path_factory.mktemp("model"), shape, dtype)


@pytest.fixture(scope="session")
def registration(plain, tmp_path_factory):
    """The plain model in a driver and at least three stages, two sessions each."""
    found = split_decoder(plain, 1_600_000, tmp_path_factory.mktemp("blobs"), slots=2)
    assert len(found.manifest.tasks) >= 4
    return found


@pytest.fixture
def ring(registration):
    return Ring(registration, ROOMY)


@pytest.fixture(scope="session")
def whole(plain):
    return LocalDecoder(plain)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The directory of a family's model, made once."""
    folders = {}

    def find(name):
        if name not in folders:
            folders[name] = make_family(tmp_path_factory.mktemp("family"), name)
        return folders[name]

    return find
