"""Settings of the whole suite."""

from hypothesis import settings

# A busy machine is slow now and then; no test's meaning is a time per example.
settings.register_profile("nodewire", deadline=None)
settings.load_profile("nodewire")
