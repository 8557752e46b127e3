"""A worker's threads go to physical cores, the fast ones first, within what the process is allowed."""

import os

import pytest

from nodewire.worker.process.cores import choose, chosen


def machine(root, siblings, speeds=None, name="cpu_capacity"):
    """A tree as Linux has it: groups of CPUs that share a core, and how fast the CPUs of each are."""
    for core, cpus in enumerate(siblings):
        for cpu in cpus:
            folder = root / f"cpu{cpu}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(",".join(map(str, cpus)) + "\n")
            if speeds:
                file = folder.parent / name
                file.parent.mkdir(exist_ok=True)
                file.write_text(f"{speeds[core]}\n")
    return root


SMT = [(0, 4), (1, 5), (2, 6), (3, 7)]
HYBRID = [(0, 1), (2, 3), (4,), (5,), (6,)]


@pytest.mark.parametrize(
    ("allowed", "threads", "expected"),
    [
        (range(8), 1, {0, 1, 2, 3}),
        (range(8), 4, {0, 1, 2, 3}),
        (range(8), 5, set(range(8))),
        ({1, 4, 5}, 2, {1, 4}),
        ({6}, 1, {6}),
    ],
)
def test_one_cpu_of_each_core_as_far_as_they_suffice(tmp_path, allowed, threads, expected):
    assert chosen(allowed, threads, machine(tmp_path, SMT)) == expected


@pytest.mark.parametrize("name", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
@pytest.mark.parametrize(("threads", "expected"), [(2, {0, 2}), (3, {0, 2, 4, 5, 6}), (6, set(range(7)))])
def test_fast_cores_go_before_slow_ones(tmp_path, name, threads, expected):
    root = machine(tmp_path, HYBRID, [1024, 1010, 600, 600, 600], name)
    assert chosen(range(7), threads, root) == expected


def test_where_nothing_is_said_all_is_as_it_was(tmp_path):
    assert chosen({0, 3, 5}, 2, tmp_path) == {0, 3, 5}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux")
def test_a_process_keeps_to_it(tmp_path):
    before = os.sched_getaffinity(0)
    try:
        choose(1, machine(tmp_path, [tuple(sorted(before))]))
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        os.sched_setaffinity(0, before)
