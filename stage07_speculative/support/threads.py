"""How many threads torch may use: as many as there are free cores.

torch cuts an operation into as many parts as there are cores, and at its end the threads wait for each other, a hundred
times in a step. While they wait they spin, which is fastest as long as each has a core. But if another program takes a
core, a browser say, the thread they wait for may not be running, and the others spin in vain until the system puts it
back, some milliseconds later. With two busy programs on two cores that made a step three to seven times slower; a
single thread waits for no other.
"""

import os
import time

import psutil
import torch

INTERVAL = 0.1  # seconds between two measurements


class ThreadLimit:
    """`with limit:` lets torch use as many threads in that block as there were free cores lately.

    It never exceeds the number of threads that it finds (`torch.set_num_threads`, OMP_NUM_THREADS), and restores it
    afterwards.
    """

    def __init__(self):
        self._most = self._limit = torch.get_num_threads()
        self.free = float(self._most)  # cores, at the last measurement
        self._measured = self._measure()

    def __enter__(self) -> None:
        if (found := torch.get_num_threads()) != self._limit:  # equal after an interrupted exit: our own
            self._most = found
        if time.monotonic() - self._measured[0] >= INTERVAL:
            before, self._measured = self._measured, self._measure()
            seconds, idle, own = (new - old for new, old in zip(self._measured, before, strict=True))
            self.free = (idle + own) / seconds  # unused cores, and our own
        self._limit = max(1, min(self._most, round(self.free)))
        if self._limit != found:
            torch.set_num_threads(self._limit)

    def __exit__(self, *_) -> None:
        if self._limit != self._most:
            torch.set_num_threads(self._most)

    @staticmethod
    def _measure() -> tuple[float, float, float]:
        """The time, and how many seconds the cores that we may use have been idle and have worked for us so far."""
        cores = dict(enumerate(psutil.cpu_times(percpu=True)))
        if hasattr(os, "sched_getaffinity") and os.sched_getaffinity(0) <= cores.keys():
            cores = {number: cores[number] for number in os.sched_getaffinity(0)}
        idle = sum(core.idle + getattr(core, "iowait", 0) for core in cores.values())
        return time.monotonic(), idle, time.process_time()
