"""What `nodewire relay` takes: a file with a table of limits, flags before it, a word about each mistake."""

import json
import subprocess
import sys

import pytest

from nodewire.cli.daemon.relay_file import RelayFile
from nodewire.errors import BadConfig
from relay.limits import BlobLimits, Limits


def test_without_a_file_the_limits_are_the_relays_own():
    config = RelayFile().config
    assert (config.limits, config.blob_limits) == (Limits(), BlobLimits())
    assert config.wraps_need_auth


def test_a_file_changes_what_it_names_and_its_paths_are_beside_it(tmp_path):
    path = tmp_path / "relay.toml"
    path.write_text(
        'db = "e.db"\nproxies = ["127.0.0.1"]\npublic_wraps = true\n'
        '[limits]\nevents_bytes = "1GiB"\nwork_per_s = 0\n[store]\nuploads = 3\n'
    )
    config = RelayFile.load(path).config
    assert config.db == tmp_path / "e.db"
    assert config.proxies == {"127.0.0.1"}
    assert not config.wraps_need_auth
    assert config.limits == Limits(events_bytes=2**30, work_per_s=0)
    assert config.blob_limits == BlobLimits(uploads=3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[limits]\nconections = 3\n", "line 2: unknown field 'conections'"),
        ("[store]\nuploads = -1\n", "store.uploads"),
        ('port = "high"\n', "port"),
        ('operator = "me"\n', "operator"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path, text, said):
    path = tmp_path / "relay.toml"
    path.write_text(text)
    with pytest.raises(BadConfig, match=said):
        RelayFile.load(path)


def test_flags_go_before_the_file(tmp_path):
    path = tmp_path / "relay.toml"
    path.write_text(f'port = 1\ndb = "{tmp_path}/e.db"\nblobs = "{tmp_path}/b"\n')
    command = (sys.executable, "-m", "nodewire.cli", "relay", "--config", str(path), "--port", "0", "--json")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        ready = json.loads(process.stdout.readline())
        process.terminate()
    assert ready["ready"] == "relay"
    assert not ready["url"].endswith(":1")
    assert (tmp_path / "e.db").exists()
