"""What all rooms' tests share: properties are about results, never about the speed or the state of the machine."""

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

# A shell's background job (``make test &``) ignores Ctrl-C, and so would every command that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
