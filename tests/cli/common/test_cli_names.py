"""Names of models at the command line, with a real relay and a certified epoch: `graph` and `models` find what is
meant, `models pin` writes it down, `register` replaces nothing by chance."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from nodewire import cli
from nodewire.cli.common import pins
from nodewire.cli.doctor import doctor
from nodewire.config import CustomerConfig, ModelPin
from nodewire.errors import BadConfig, NotAllowed, NotFound
from nodewire.nostr.pool import Pool
from nodewire.store.blobs import Blobs
from tests.customer.named_models import (
    FRIEND,
    ME,
    STRANGER,
    Epoch,
    address,
    follow_list,
    model,
    publication,
)

RECIPE = Path(__file__).parents[3] / "docs" / "recipes" / "bytes.toml"
NODEWIRE = [sys.executable, "-m", "nodewire.cli"]
PYCODER, ONE, TWO = model("pycoder", "p"), model("smollm2", "one"), model("smollm2", "two", bytes_=7_000_000)
IMITATION = model("pyc0der", "i")


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    """A relay's URLs, where an epoch is certified in which providers hold two models of one name, and an imitation."""
    folder = tmp_path_factory.mktemp("market")
    command = ["relay", "--port", "0", "--db", str(folder / "relay.db"), "--blobs", str(folder / "blobs"), "--json"]
    process = subprocess.Popen([*NODEWIRE, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout
    ready = json.loads(process.stdout.readline())
    epoch = Epoch([(ONE, 20_000_000), (TWO, 10_000_000), (PYCODER, 0), (IMITATION, 0)])

    async def fill():
        published = [publication(STRANGER, ONE), publication(FRIEND, TWO), publication(ME, PYCODER)]
        async with Pool([ready["url"]]) as pool, Blobs([ready["blossom"]], folder / "cache", keys=ME) as blobs:
            await blobs.put(epoch.blob)
            for event in [*epoch.events, *published, publication(STRANGER, IMITATION)]:
                await pool.publish(event)

    asyncio.run(fill())
    yield ready["url"], ready["blossom"], f"38841:{STRANGER.public}:{epoch.committee.name}"
    process.terminate()
    process.wait(10)
    process.stdout.close()


@pytest.fixture
def config(market, tmp_path):
    relay, blossom, committee = market
    path = tmp_path / "customer.toml"
    (tmp_path / "key.nsec").write_text(ME.nsec)
    (tmp_path / "key.nsec").chmod(0o600)
    path.write_text(
        f'# mine\nkey = "key.nsec"\nstate = "state"\nrelays = ["{relay}"]\nblossom = ["{blossom}"]\n'
        f'committee = "{committee}"\n\n[wallet]\nurl = "http://127.0.0.1:1"  # none\ntoken_file = "wallet.token"\n'
    )
    return path


@pytest.fixture
def say(monkeypatch, capfd):
    """`nodewire ARGUMENTS --json` in this process: exit code, and the document."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nodewire", *arguments, "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, json.loads(capfd.readouterr().out)

    return run


def test_without_a_terminal_a_name_of_two_models_is_an_error_that_lists_them_until_one_is_pinned(say, config, tmp_path):
    drawn = ["graph", "smollm2", "-o", str(tmp_path / "out.svg"), "--config", str(config)]
    code, said = say(*drawn)
    assert (code, said["error"]["code"]) == (1, "ambiguous")
    assert [one["address"] for one in said["error"]["candidates"]] == [
        address(STRANGER, "smollm2"),
        address(FRIEND, "smollm2"),
    ]
    assert "nodewire models pin smollm2 ADDRESS" in said["error"]["reason"]
    pin = ["models", "pin", "smollm2", address(FRIEND, "smollm2"), "--config", str(config)]
    assert say(*pin)[1] == {
        "name": "smollm2",
        "manifest": address(FRIEND, "smollm2"),
        "digest": TWO.digest(),
        "new": True,
    }
    code, said = say(*drawn)
    assert (code, said["digest"]) == (0, TWO.digest())
    assert say(*pin)[1]["new"] is False
    other = ["models", "pin", "smollm2", address(STRANGER, "smollm2"), "--config", str(config)]
    code, said = say(*other)
    assert (code, said["error"]["code"]) == (1, "not-allowed")
    assert address(FRIEND, "smollm2") in said["error"]["reason"]
    assert say(*other, "--replace")[0] == 0
    assert say(*drawn)[1]["digest"] == ONE.digest()
    assert say("models", "unpin", "smollm2", "--config", str(config))[0] == 0
    assert say(*drawn)[1]["error"]["code"] == "ambiguous"
    assert say("models", "unpin", "smollm2", "--config", str(config))[1]["error"]["code"] == "not-found"


def test_models_say_whose_they_are_and_which_are_taken_for_others(say, config):
    say("models", "pin", "best", address(FRIEND, "smollm2"), "--config", str(config))
    code, said = say("models", "--config", str(config))
    assert code == 0, said
    found = {one["address"]: one for one in said["models"]}
    assert len(found) == 4
    pinned, own = found[address(FRIEND, "smollm2")], found[address(ME, "pycoder")]
    assert (pinned["standing"], pinned["pinned_as"], pinned["resembles"]) == ("pinned", ["best"], "")
    assert (own["standing"], own["resembles"]) == ("own", "")
    assert found[address(STRANGER, "pyc0der")]["resembles"] == address(ME, "pycoder")
    assert found[address(STRANGER, "smollm2")]["resembles"] == address(FRIEND, "smollm2")
    assert [one["standing"] for one in said["models"]] == ["pinned", "own", "stranger", "stranger"]


def test_doctor_tells_of_a_pin_whose_version_is_gone(config):
    text = config.read_text()
    config.write_text(
        text + f'[names]\none = {{ manifest = "{address(FRIEND, "smollm2")}", digest = "{TWO.digest()}" }}\n'
    )
    assert asyncio.run(doctor._names(CustomerConfig.load(config))) == "one is smollm2"
    config.write_text(
        text + f'[names]\none = {{ manifest = "{address(FRIEND, "smollm2")}", digest = "{ONE.digest()}" }}\n'
    )
    with pytest.raises(NotFound, match=r"names\.one: .*another version.*models pin one"):
        asyncio.run(doctor._names(CustomerConfig.load(config)))


@pytest.mark.parametrize(("typed", "digest"), [("x\n0\n2\n", TWO.digest()), ("\n", None)])
def test_on_a_terminal_its_user_is_asked(config, tmp_path, typed, digest):
    parent, child = pty.openpty()
    command = [*NODEWIRE, "graph", "smollm2", "-o", str(tmp_path / "out.svg"), "--config", str(config)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment)
    os.close(child)
    shown, rest = "", typed.splitlines(keepends=True)
    while True:
        if not select.select([parent], [], [], 100)[0]:
            process.kill()
            pytest.fail(shown)
        try:
            part = os.read(parent, 65_536).decode()
        except OSError:  # the terminal's other end is closed
            break
        shown += part
        while rest and shown.count("Which?") > len(typed.splitlines()) - len(rest):
            os.write(parent, rest.pop(0).encode())
    os.close(parent)
    assert process.wait(30) == (0 if digest else 1), shown
    assert all(what in shown for what in ("publisher", "7.0 MB", "218.750 sat", address(FRIEND, "smollm2"))), shown
    assert (tmp_path / "out.svg").exists() == bool(digest)
    assert ("nodewire models pin smollm2" in shown) and ("as you chose" in shown) == bool(digest)


def test_whom_one_follows_decides_and_it_is_said(market, config, tmp_path, say, monkeypatch, capfd):
    async def publish(keys):
        async with Pool([market[0]]) as pool:
            await pool.publish(follow_list(keys))

    drawn = ["graph", "smollm2", "-o", str(tmp_path / "out.svg"), "--config", str(config)]
    asyncio.run(publish([FRIEND.public]))
    assert say(*drawn)[1]["digest"] == TWO.digest()
    monkeypatch.setattr(sys, "argv", ["nodewire", *drawn])
    with pytest.raises(SystemExit):
        cli.main()
    said = " ".join(capfd.readouterr().err.split())
    assert f"smollm2 is {address(FRIEND, 'smollm2')} (published by you, or by whom you follow)" in said
    code, told = say("graph", "pyc0der", "-o", str(tmp_path / "out.svg"), "--config", str(config))
    assert (code, told["error"]["code"]) == (1, "ambiguous")


# The file.

TEXT = '# mine\nkey = "k"  # a key\n\n[wallet]\nurl = "u"\n'
AT = f"38840:{'ab' * 32}:one"
OTHER = f"38840:{'cd' * 32}:two"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (TEXT, TEXT + f'\n[names]\n"a.b" = {{ manifest = "{AT}" }}\n'),
        (TEXT + "[names]\n# friends\n", TEXT + f'[names]\n"a.b" = {{ manifest = "{AT}" }}\n# friends\n'),
        (
            f'k = 1\n[names]\n"a.b" = {{ manifest = "{OTHER}" }}\n[wallet]\n',
            f'k = 1\n[names]\n"a.b" = {{ manifest = "{AT}" }}\n[wallet]\n',
        ),
        ("k = 1\r\n[names]", f'k = 1\r\n[names]\r\n"a.b" = {{ manifest = "{AT}" }}\r\n'),
    ],
)
def test_a_pin_is_one_line_of_the_file_and_the_rest_stays(tmp_path, before, after):
    path = tmp_path / "role.toml"
    path.write_bytes(before.encode())
    path.chmod(0o640)
    assert pins.pin(path, "a.b", ModelPin(manifest=AT), replace=True)
    assert (path.read_bytes().decode(), path.stat().st_mode & 0o777) == (after, 0o640)
    assert tomllib.loads(after)["names"]["a.b"] == {"manifest": AT}
    assert not pins.pin(path, "a.b", ModelPin(manifest=AT))
    pins.unpin(path, "a.b")
    assert tomllib.loads(path.read_text()).get("names", {}) == {}
    with pytest.raises(NotFound):
        pins.unpin(path, "a.b")
    assert [one.name for one in tmp_path.iterdir()] == ["role.toml"]


@pytest.mark.parametrize(
    "text",
    [
        f'names = {{ a = {{ manifest = "{OTHER}" }} }}\n',
        f'[names.a]\nmanifest = "{OTHER}"\n',
        f'names.a.manifest = "{OTHER}"\n',
    ],
)
def test_a_pin_that_is_written_otherwise_is_left_to_its_owner(tmp_path, text):
    path = tmp_path / "role.toml"
    path.write_text(text)
    with pytest.raises(NotAllowed, match="is pinned to"):
        pins.pin(path, "a", ModelPin(manifest=AT))
    for change in (lambda: pins.pin(path, "a", ModelPin(manifest=AT), replace=True), lambda: pins.unpin(path, "a")):
        with pytest.raises(BadConfig, match="does not change"):
            change()
    assert path.read_text() == text


@pytest.mark.parametrize("name", ["SmolLM2", "smоllm2", "naddr1x", "", "a b"])
def test_a_name_that_nobody_can_type_is_refused_in_a_file(config, name):
    config.write_text(config.read_text() + f'[names]\n"{name}" = {{ manifest = "{AT}" }}\n')
    with pytest.raises(BadConfig, match="names"):
        CustomerConfig.load(config)


# What is published over.


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two models that are cut already, of one name and other weights."""
    import torch
    from torch import nn

    import nodewire

    folders = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        folders.append(tmp_path_factory.mktemp("cut") / "blobs")
        layer = nn.Sequential(nn.Linear(8, 16 * seed), nn.ReLU(), nn.Linear(16 * seed, 2)).eval()
        nodewire.register(layer, [torch.zeros(n, 8) for n in (1, 4)], target_vram="2MB", out=folders[-1], name="own")
    return folders


def test_another_model_is_not_replaced_by_chance(market, kept, tmp_path, say):
    relay, blossom, _ = market
    where = ["--relay", relay, "--blossom", blossom, "--key", str(tmp_path / "author.nsec")]
    code, first = say("register", str(kept[0]), *where)
    assert code == 0, first
    code, again = say("register", str(kept[0]), *where)
    assert (code, again["digest"]) == (0, first["digest"])
    code, said = say("register", str(kept[1]), *where)
    assert (code, said["error"]["code"], said["error"]["field"]) == (1, "not-allowed", "--replace")
    for what in (first["address"], first["digest"][:12], "would be replaced by", "1 task", "--name"):
        assert what in said["error"]["reason"]
    code, second = say("register", str(kept[1]), *where, "--replace")
    assert (code, second["address"]) == (0, first["address"])
    assert second["digest"] != first["digest"]
    assert asyncio.run(stands(relay, first["address"])) == second["digest"]  # also in the same second
    assert say("register", str(kept[0]), *where, "--name", "another")[0] == 0


def test_the_same_weights_under_another_license_need_nothing(market, kept, tmp_path, say):
    from nodewire.cli.common.manifest_file import read_manifest

    relay, blossom, _ = market
    where = ["--relay", relay, "--blossom", blossom, "--key", str(tmp_path / "author.nsec")]
    assert say("register", str(kept[0]), *where)[0] == 0
    same = shutil.copytree(kept[0], tmp_path / "same")
    file = next(one for one in same.iterdir() if one.name.startswith("manifest"))
    file.write_bytes(read_manifest(same).model_copy(update={"license": "MIT"}).pack())
    code, said = say("register", str(same), *where)
    assert code == 0, said
    assert asyncio.run(stands(relay, said["address"])) == said["digest"]


async def stands(relay, at):
    """The digest of what a relay has at an address."""
    from nodewire.market import addressed

    async with Pool([relay]) as pool:
        return (await addressed(pool, at, 38840)).tag("x")


def test_a_training_asks_before_it_pays(market, config, tmp_path, say):
    """What is trained would replace ME's pycoder."""
    recipe, data = tmp_path / "recipe.toml", tmp_path / "data"
    data.mkdir()
    (data / "text.txt").write_text("the cat sat on the mat\n" * 100)
    recipe.write_text(RECIPE.read_text().replace('name = "bytes"', 'name = "pycoder"', 1))
    command = ["train", str(recipe), "--data", str(data), "--budget", "5sat", "--config", str(config)]
    code, said = say(*command, "--out", str(tmp_path / "out"), "--register")
    assert (code, said["error"]["code"], said["error"]["field"]) == (1, "not-allowed", "--replace"), said
    assert address(ME, "pycoder") in said["error"]["reason"]
    code, said = say(*command, "--replace")
    assert (code, said["error"]["field"]) == (1, "--replace")
