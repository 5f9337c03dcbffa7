"""Loads torch, and sets how long the threads of its OpenMP runtime wait before they sleep.

GNU's runtime lets a thread that has nothing to do spin for some milliseconds, in case there is more soon.
What is soon is a millisecond here, from a step to the next. To spin longer takes a core from everybody else, and in
company from the engine's own next step: the system lets those wait who have used up their time. Within a step the
kernels' threads wait in their own way (kernels/team.h).

The runtime reads its settings when torch loads it, so this is imported before torch. That takes two seconds, in which
the kernels are compiled, if they have to be.
"""

import os
import platform
import sys

from . import compiler

SPIN_COUNT = "60000"  # turns of a loop: one to three milliseconds, by CPU, what Python takes between two steps


def load_torch() -> bool:
    """Load torch, with a runtime that spins briefly. Returns whether it does: not if torch was there before, or if the
    user has set it otherwise."""
    if "torch" in sys.modules:
        return False
    compiler.begin()
    if platform.system() != "Linux":
        return False
    chosen = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
    if chosen:
        return os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    try:
        import torch  # noqa: F401 (reads it now, and never again)
    finally:
        del os.environ["GOMP_SPINCOUNT"]  # programs that this one starts decide for themselves
    return True


WAITS_BRIEFLY = load_torch()
