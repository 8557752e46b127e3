"""Settings of the whole suite."""

from hypothesis import HealthCheck, settings

# A busy machine is slow now and then; no test's meaning is a time per example.
settings.register_profile("nodewire", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("nodewire")
