"""A state folder has one daemon; the lock ends with its process, however that ends."""

import os
import subprocess
import sys

import pytest

from nodewire.errors import Busy
from nodewire.store.held import held

HOLD = """
import sys, time
from pathlib import Path
from nodewire.store.held import held
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
