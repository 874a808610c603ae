"""Settings of all tests."""

from hypothesis import settings

# A busy machine is slow now and then; what hangs meets pytest's own timeout. In CI, Hypothesis's profile for it stays.
settings.register_profile("towline", parent=settings(), deadline=None)
settings.load_profile("towline")
