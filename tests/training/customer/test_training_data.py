"""A training goes on with the data that it was begun with, and with no others."""

from __future__ import annotations

import pytest

from nodewire.config import CustomerConfig, WalletConfig
from nodewire.errors import BadConfig, NotAllowed
from nodewire.store.folder import digest
from nodewire.training.customer import api
from nodewire.training.customer.machine.events import TrainingStart
from nodewire.training.customer.machine.journal import Journal
from nodewire.training.customer.market.context import TrainingOrder
from tests.kinds.digits import RECIPE
from tests.training.customer.market.test_carried_state import BLOB


@pytest.fixture
def config(tmp_path):
    """Of a customer whose key file is none: nothing of a training is done but what comes before anyone is dialled."""
    (tmp_path / "key").write_text("no key")
    return CustomerConfig(
        key=tmp_path / "key",
        relays=("ws://127.0.0.1:1",),
        blossom=("http://127.0.0.1:1",),
        committee=f"38841:{'0' * 64}:none",
        state=tmp_path / "state",
        wallet=WalletConfig(url="http://127.0.0.1:1", token_file=tmp_path / "token"),
    )


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"one")
    (folder / "b.txt").write_bytes(b"other")
    return folder


async def begin(config, data):
    """As far as to the key that is none."""
    with pytest.raises(BadConfig, match="key"):
        await api.train(config, RECIPE, data, TrainingOrder(2, 1))


def opened(config) -> Journal:
    journal = Journal(api.folder_of(config, RECIPE, 2) / "journal.db")
    journal.append(TrainingStart(3, (BLOB, BLOB), BLOB))
    return journal


async def test_other_data_are_refused_where_a_training_has_begun_with_advice(config, data):
    await begin(config, data)
    opened(config).close()
    assert api.begun(config, RECIPE, 2, data).rounds == 3
    await begin(config, data)
    (data / "b.txt").write_bytes(b"Other")
    folder = api.folder_of(config, RECIPE, 2)
    with pytest.raises(NotAllowed, match="another name") as refused:
        await api.train(config, RECIPE, data, TrainingOrder(2, 1))
    assert refused.value.field == "--data"
    assert str(folder) in refused.value.reason
    with pytest.raises(NotAllowed, match="other data"):
        api.begun(config, RECIPE, 2, data)
    await begin(config.model_copy(update={"state": config.state / "new"}), data)


async def test_until_a_training_has_begun_its_data_may_change(config, data):
    await begin(config, data)
    (data / "b.txt").unlink()
    assert api.begun(config, RECIPE, 2, data) is None
    await begin(config, data)
    journal = opened(config)
    assert journal.fact("data", "") == digest(data, "--data")
    journal.close()


async def test_a_journal_that_does_not_say_its_data_takes_any(config, data):
    api.folder_of(config, RECIPE, 2).mkdir(parents=True)
    opened(config).close()
    await begin(config, data)
    (data / "a.txt").unlink()
    await begin(config, data)
    assert api.begun(config, RECIPE, 2, data).rounds == 3


def test_data_are_the_same_elsewhere_and_others_in_another_order(data, tmp_path):
    same = digest(data, "--data")
    assert digest(data.rename(tmp_path / "moved"), "--data") == same
    (tmp_path / "moved" / "a.txt").rename(tmp_path / "moved" / "c.txt")
    assert digest(tmp_path / "moved", "--data") != same
