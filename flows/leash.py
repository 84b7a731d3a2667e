"""``python -P -m flows.leash PARENT WORDS...``: ``htam WORDS``, ended by the kernel when its parent dies.

A flow whose process is killed must not leave a tuning run behind that goes on spending, and that holds the lock of the
run directory which the next try needs.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Fasten the leash, then become ``htam``."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # it died before the leash was on
        raise SystemExit(128 + signal.SIGTERM)
    sys.argv = ["htam", *sys.argv[2:]]
    runpy.run_module("pipeline", run_name="__main__")


if __name__ == "__main__":
    main()
