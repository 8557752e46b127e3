"""A state folder has one daemon; the lock ends with its process, however that ends."""

import os
import subprocess
import sys

import pytest

from nodewire.errors import Busy
from nodewire.store.state_lock import held, sole_key

HOLD = """
import sys, time
from pathlib import Path
from nodewire.store.state_lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_is_told_who_has_the_folder_until_that_process_is_gone(tmp_path):
    folder = tmp_path / "new" / "state"
    first = subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "held\n"
        for _ in range(2):  # who asks in vain does not take the holder's name off
            with (
                pytest.raises(Busy, match=f"already running: state folder .* is in use by process {first.pid}$"),
                held(folder),
            ):
                pass
    finally:
        first.kill()
        first.communicate()
    with held(folder):
        assert (folder / "lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_that_was_let_go_may_be_held_again(tmp_path):
    for _ in range(2):
        with held(tmp_path):
            pass


def test_a_second_buyer_with_a_key_is_told_who_has_it_until_that_process_is_gone(tmp_path):
    path = tmp_path / "key.nsec"
    path.write_text("nsec1")
    path.chmod(0o400)
    code = HOLD.replace("held(", "sole_key(").replace("import held", "import sole_key")
    first = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "held\n"
        with (
            pytest.raises(Busy, match=f"key.nsec is in use by process {first.pid}: stop that one, or "),
            sole_key(path),
        ):
            pass
    finally:
        first.kill()
        first.communicate()
    with sole_key(path):
        assert [file.name for file in tmp_path.iterdir()] == ["key.nsec"]
