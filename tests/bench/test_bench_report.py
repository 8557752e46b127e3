"""How a bench ends: its exit code, and what it says on standard error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.report import SKIPPED

ROOT = Path(__file__).parent.parent.parent
BENCH = """
from bench.report import run

async def measure(report, options):
    {does}

run("x", None, measure)
"""
FINE, WRONG, LACKS = 'report.line("fine", 1, "<=", 1)', 'report.line("slow", 3, "<=", 2)', 'report.skip("wings")'


def ended(words, env=None):
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=ROOT, env=env, check=False)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("does", "code", "said", "unsaid"),
    [
        (FINE, 0, "", "fine"),
        (f"{FINE}; {WRONG}", 1, "NOT OK slow: 3 (<= 2)", "fine"),
        (f"{FINE}; {LACKS}", SKIPPED, "skipped: needs wings", "NOT OK"),
        (LACKS, SKIPPED, "skipped: needs wings", "NOT OK"),
        (f"{WRONG}; {LACKS}", 1, "NOT OK slow: 3 (<= 2)\nskipped: needs wings", "fine"),
        ("raise OSError('gone')", 1, "NOT OK finished: OSError: gone", "skipped"),
        ("pass", 1, "", "skipped"),
    ],
)
def test_what_is_not_ok_or_lacking_is_said_beside_the_document_and_by_the_exit_code(does, code, said, unsaid):
    returned, document, err = ended(["-c", BENCH.format(does=does), "--json"])
    assert returned == code
    assert said in err and unsaid not in err
    assert document.get("skipped") == ("needs wings" if "wings" in does else None)


@pytest.mark.parametrize("bench", ["ring", "nat"])
def test_a_bench_that_needs_namespaces_is_skipped_where_there_can_be_none(bench):
    returned, document, err = ended(["-m", f"bench.network.{bench}", "--json"], {**os.environ, "PATH": "/nowhere"})
    assert (returned, document["arms"]) == (SKIPPED, {})
    assert "skipped: needs " in err and "not installed" in err and "Traceback" not in err
