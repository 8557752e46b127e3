"""What every daemon does before it starts."""

import resource

import pytest

from nodewire.cli import daemons


@pytest.mark.parametrize("soft", [256, 1_024])
def test_a_daemon_may_open_as_many_files_as_the_system_allows(soft):
    """Links alone were more than the usual limit: whoever opened a thousand had it fail to open its own books."""
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= soft:
        pytest.skip("this system allows no more")
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        daemons.allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
