"""`--metrics`, of commands that have no file."""

import json
import subprocess
import sys
from contextlib import contextmanager

import pytest

from nodewire.cli.daemon.relay import relay as relay_command
from nodewire.cli.daemon.splice import splice as splice_command
from nodewire.errors import BadConfig
from tests.metrics.scrape import documented, families, fetched, value, values

NODEWIRE = [sys.executable, "-m", "nodewire.cli"]


@contextmanager
def running(*command, cwd):
    """A daemon's process, and the first line that it prints."""
    with subprocess.Popen([*command], stdout=subprocess.PIPE, cwd=cwd) as process:
        try:
            yield process.stdout.readline().decode()
        finally:
            process.terminate()
            process.wait(10)


def shows(text, daemon):
    rows = [row for row in documented() if {"all", daemon} & set(row.daemons.split(", "))]
    assert families(text) == {row.name: row.kind for row in rows}
    assert any(dict(labels).get("daemon") == daemon for _, labels in values(text))
    assert value(text, "process_start_time_seconds") > 0


def test_a_relay_and_a_splice_show_what_is_documented(tmp_path):
    relay = [*NODEWIRE, "relay", "--port", "0", "--metrics", "127.0.0.1:0", "--json"]
    with running(*relay, cwd=tmp_path) as said:
        ready = json.loads(said)
        shows(fetched(ready["metrics"]), "relay")
        splice = [*NODEWIRE, "splice", "--key", "key", "--relay", ready["url"], "--listen", "127.0.0.1:0"]
        with running(*splice, "--metrics", "127.0.0.1:0", "--json", cwd=tmp_path) as told:
            text = fetched(json.loads(told)["metrics"])
            shows(text, "splice")
            assert value(text, "nodewire_splice_bytes_total") == 0


def test_nothing_is_listened_at_unless_it_is_asked_for(tmp_path):
    with running(*NODEWIRE, "relay", "--port", "0", "--json", cwd=tmp_path) as said:
        assert "metrics" not in json.loads(said)


@pytest.mark.parametrize("where", ["9464", "127.0.0.1:", "127.0.0.1:99999", ":9464", "127.0.0.1:x"])
def test_an_address_that_is_none_is_told_before_anything_is_opened(tmp_path, monkeypatch, where):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadConfig, match="--metrics"):
        relay_command(metrics=where)
    with pytest.raises(BadConfig, match="--metrics"):
        splice_command(tmp_path / "key", ["ws://127.0.0.1:9"], metrics=where)
    assert not list(tmp_path.iterdir())
