"""What a provider of training keeps on its disk: what it carries, sealed and bounded, and results that are made."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from nodewire.errors import NotCarried
from nodewire.store import sealed_blobs
from nodewire.training.protocol.recipe import NOTHING
from nodewire.training.protocol.result import DeliveryDetails
from nodewire.training.provider import carried_store
from nodewire.training.provider.carried_store import CarriedFiles
from nodewire.training.provider.undelivered_results import MadeResults

JOB, SALT = "ab" * 32, "cd" * 32


@dataclass(frozen=True)
class Job:
    """As much of an admitted round as is looked at."""

    round: int = 1
    index: int = 3
    begins_with: str | None = None
    deadline_s: int = 100
    rounds: int = 9

    @property
    def request(self):
        return SimpleNamespace(round=SimpleNamespace(job=JOB, round=self.round, deadline_s=self.deadline_s))

    @property
    def ticket(self):
        return SimpleNamespace(salt=SALT, carried=self.begins_with)

    @property
    def assigned(self):
        return SimpleNamespace(index=self.index)

    @property
    def recipe(self):
        return SimpleNamespace(rounds=self.rounds)


def digest(plain: bytes) -> str:
    return hashlib.sha256(plain).hexdigest()


def names(folder) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def files(tmp_path):
    return CarriedFiles(tmp_path / "carried", 10_000)


def test_what_is_kept_is_found_by_its_digest_also_after_a_restart_and_only_sealed(files, tmp_path):
    plain = b"residual" * 100
    files.keep(Job(), digest(plain), [plain[:300], plain[300:]])
    (path,) = (tmp_path / "carried").iterdir()
    assert b"residual" not in path.read_bytes()
    again = CarriedFiles(tmp_path / "carried", 10_000)
    found, key = again.begun(Job(2, begins_with=digest(plain)))
    assert b"".join(sealed_blobs.unseal(found, key)) == plain
    assert again.begun(Job(0)) is None


@pytest.mark.parametrize("change", [{"index": 2}, {"begins_with": "00" * 31 + "01"}])
def test_what_is_not_here_is_said(files, change):
    files.keep(Job(), digest(b"x"), [b"x"])
    with pytest.raises(NotCarried):
        files.begun(replace(Job(2, begins_with=digest(b"x")), **change))


def test_no_two_files_have_the_same_key(files):
    for index, plain in [(3, b"x"), (3, b"y"), (4, b"x")]:
        files.keep(Job(index=index), digest(plain), [plain])
    keys = {files.begun(Job(2, i, digest(p)))[1] for i, p in [(3, b"x"), (3, b"y"), (4, b"x")]}
    assert len(keys) == 3


def test_the_ones_before_stay_for_some_rounds_as_a_customer_may_go_back(files, tmp_path):
    for round_ in range(6):
        files.keep(Job(round_), digest(b"%d" % round_), [b"%d" % round_])
    files.keep(Job(5), digest(b"5"), [b"5"])  # trained again after a crash
    files.keep(Job(5, index=4), digest(b"5"), [b"5"])
    assert len(names(tmp_path / "carried")) == 7
    assert files.begun(Job(1, begins_with=digest(b"0"))) is not None
    files.prune(Job(5, begins_with=digest(b"4")))
    assert len(names(tmp_path / "carried")) == 1 + carried_store.KEPT == 5
    for round_ in range(2, 6):
        assert files.begun(Job(round_ + 1, begins_with=digest(b"%d" % round_))) is not None
    with pytest.raises(NotCarried):
        files.begun(Job(2, begins_with=digest(b"1")))


def test_nothing_and_what_no_round_needs_is_not_kept(files, tmp_path):
    files.keep(Job(), NOTHING, [])
    files.keep(Job(8), digest(b"x"), [b"x"])
    assert names(tmp_path / "carried") == []


def test_after_two_deadlines_it_is_gone(files, tmp_path, monkeypatch):
    files.keep(Job(), digest(b"x"), [b"x"])
    (tmp_path / "carried" / "left.partial").touch()
    now_s = carried_store.time.time()
    monkeypatch.setattr(carried_store.time, "time", lambda: now_s + 199)
    assert len(names(tmp_path / "carried")) == 2
    CarriedFiles(tmp_path / "carried", 10_000)
    assert len(names(tmp_path / "carried")) == 1
    monkeypatch.setattr(carried_store.time, "time", lambda: now_s + 201)
    CarriedFiles(tmp_path / "carried", 10_000)
    assert names(tmp_path / "carried") == []


def test_of_too_many_those_go_that_are_over_first(files, tmp_path):
    for index in range(5):
        files.keep(Job(index=index, deadline_s=100 + index), digest(b"x"), [bytes(3_000)])
    assert sorted(name.split("-")[2] for name in names(tmp_path / "carried")) == ["2", "3", "4"]


def test_a_result_is_made_when_its_words_are_on_disk(tmp_path):
    made = MadeResults(tmp_path / "made")
    said = DeliveryDetails(key="01" * 32, sha256=digest(b"update"), bytes=6, samples=1, losses=(), states=("ab" * 32,))
    request, other = "11" * 32, "22" * 32
    assert made.find(request) is None
    path = made.keep(request, said, [b"upd", b"ate"])
    made.keep(other, said, [b"update"])
    again = MadeResults(tmp_path / "made")
    again.only([request])
    assert again.find(request) == (path, said) and again.find(other) is None
    assert b"".join(sealed_blobs.unseal(path, said.key)) == b"update"
    (tmp_path / "made" / f"{request}.json").write_text('{"v": 1')
    assert again.find(request) is None
    again.remove(request)
    assert names(tmp_path / "made") == []
