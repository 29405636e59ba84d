"""What holds for every test: how long something takes is not a test's business, on a shared machine least of all."""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

# A shell that runs the tests in the background has them ignore ctrl-C, and so would every command that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
