"""The filter decides alike on both architectures: a small interpreter of classic BPF runs it on made-up calls."""

import pytest

from nodewire.worker.sandbox import seccomp

PID = 4242
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026


def verdict(code, arch, number, arguments):
    data = {0: number, 4: arch}
    for index, value in enumerate((*arguments, *[0] * 6)[:6]):
        data |= {16 + 8 * index: value & 0xFFFFFFFF, 20 + 8 * index: value >> 32}
    a = at = 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        match op:
            case 0x20:
                a = data[k]
            case 0x54:
                a &= k
            case 0x15:
                at += yes if a == k else no
            case 0x45:
                at += yes if a & k else no
            case 0x35:
                at += yes if a >= k else no
            case 0x06:
                return k


def ask(machine, x86, arm, *arguments, arch=None, gpu=False):
    code = seccomp.program(machine, PID, strict_memory=not gpu, write_opens=gpu)
    number = x86 if machine == "x86_64" else arm
    return verdict(code, arch or ARCH[machine], number, arguments)


@pytest.mark.parametrize("machine", list(ARCH))
def test_decisions(machine):
    decisions = [
        (ALLOW, ask(machine, 0, 63)),  # read
        (ALLOW, ask(machine, 1, 64)),  # write
        (EPERM, ask(machine, 41, 198)),  # socket
        (EPERM, ask(machine, 59, 221)),  # execve
        (EPERM, ask(machine, 117 if machine == "aarch64" else 101, 117)),  # ptrace
        (EPERM, ask(machine, 425, 425)),  # io_uring_setup
        (ALLOW, ask(machine, 257, 56, 0, 0, 0o2000000)),  # openat, O_CLOEXEC
        (EPERM, ask(machine, 257, 56, 0, 0, 0o2)),  # openat, O_RDWR
        (EPERM, ask(machine, 257, 56, 0, 0, 0o100)),  # openat, O_CREAT
        (ALLOW, ask(machine, 257, 56, 0, 0, 0o2, gpu=True)),  # Landlock decides
        (ENOSYS, ask(machine, 437, 437)),  # openat2
        (ENOSYS, ask(machine, 435, 435)),  # clone3
        (ALLOW, ask(machine, 56, 220, 0x003D0F00)),  # a thread, as libc starts it
        (EPERM, ask(machine, 56, 220, 0x01200011)),  # a process, as libc forks it
        (ALLOW, ask(machine, 9, 222, 0, 4096, 3, 0x22)),  # private anonymous memory
        (ALLOW, ask(machine, 9, 222, 0, 4096, 1, 0x01)),  # a shared mapping of a file
        (EPERM, ask(machine, 9, 222, 0, 4096, 3, 0x21)),  # shared anonymous memory
        (ALLOW, ask(machine, 302, 261, 0, 2, 0, 2**40)),  # reading a limit
        (EPERM, ask(machine, 302, 261, 0, 2, 2**40, 0)),  # setting one
        (ALLOW, ask(machine, 234, 131, PID, PID, 6)),  # abort
        (EPERM, ask(machine, 234, 131, 1, 1, 9)),
        (EPERM, ask(machine, 157, 167, 1, 0)),  # prctl(PR_SET_PDEATHSIG)
        (ALLOW, ask(machine, 157, 167, 15, 0)),  # prctl(PR_SET_NAME)
        (KILL, ask(machine, 0, 63, arch=0x40000003)),  # another architecture's numbers
    ]
    for index, (expected, decided) in enumerate(decisions):
        assert decided == expected, index


def test_the_x32_numbers_are_no_way_around():
    assert ask("x86_64", 0x40000000 | 41, 0) == EPERM
