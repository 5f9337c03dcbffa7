"""Loads torch with an OpenMP runtime whose threads wait briefly.

GNU's runtime lets an idle thread spin for some milliseconds, in case more work comes soon. The next step comes within a
millisecond. Spinning longer takes a core from other programs, and then the system makes the engine's own next step
wait. (Within a step the kernels' threads wait in their own way: kernels/team.h.)

The runtime reads its settings when torch loads it, so this is imported before torch.
"""

import os
import platform
import sys

SPIN_COUNT = "60000"  # turns of a loop: one to three milliseconds, by CPU


def load_torch() -> bool:
    """Load torch. Returns whether its threads wait briefly: it may be loaded already, and the user's settings win."""
    if "torch" in sys.modules or platform.system() != "Linux":
        return False
    if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        return os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
    os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT
    try:
        import torch  # noqa: F401
    finally:
        del os.environ["GOMP_SPINCOUNT"]  # programs that this one starts decide for themselves
    return True


WAITS_BRIEFLY = load_torch()
