"""Runs on the machines of a cluster: an actor with an engine, which stays full while rows come and go."""

import itertools
import json
import os
import sys
from typing import Any

import torch

from ..batch_file import How, LineReader, completed, refused
from ..exits import MissingPackageError
from ..manifest import hash_of_checkpoint
from ..resolve import readable
from ..stages import stage_of

SHARE_OF_FREE_MEMORY = 0.5  # for the KV caches of all actors on a machine together


class Completer:
    """An engine that completes batches of lines, several batches at once, each in its own thread.

    If a batch had to end before the next one could begin, the engine would run half empty at the end of each.

    Args:
        package: the stage's.
        options: the engine's.
        how: how the lines are completed.
        per_machine: how many such actors share a machine's memory.
        num_cpus, num_gpus: what this one may use.
    """

    def __init__(self, package: str, options: dict, how: How, per_machine: int, num_cpus: int, num_gpus: float):
        import torch

        self.stage, options = stage_of(package), readable(options)
        torch.set_num_threads(num_cpus)
        if not num_gpus and options.get("num_blocks") is None and options["kv_cache_bytes"] is None:
            options = {**options, "kv_cache_bytes": cache_bytes(package, options, per_machine)}
        self.llm = self.stage.LLM(**options)
        self.reader = LineReader(self.stage, self.llm.config, how, self.llm)

    def __call__(self, batch: dict) -> dict:
        """The results of a batch of lines.

        Args:
            batch: columns place, number (of the line in its file), raw (the line) and id (as JSON).

        Returns:
            columns place, result (a line of JSON) and is_error.
        """
        try:
            return self._complete(batch)
        except MissingPackageError:  # another process would lack it, too; Ray tells the driver, which ends
            raise
        except Exception as error:
            # A step failed and its retry too. Ray restarts an actor only if its process has ended.
            print(f"scaleout: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def _complete(self, batch: dict) -> dict:
        jobs = []
        for place, number, raw, name in zip(*(batch[c] for c in ("place", "number", "raw", "id")), strict=True):
            line = self.reader.read_line(bytes(raw), int(number))
            self.reader.check(line)
            line.id = json.loads(name)  # the driver has seen all ids, and has given ids to lines without one
            jobs.append((int(place), line))
        good = [(place, line) for place, line in jobs if not line.error]
        answers = list(itertools.chain(refused(jobs), completed(self.stage, good, self.llm)))
        return {name: [answer[i] for answer in answers] for i, name in enumerate(("place", "result", "is_error"))}


def cache_bytes(package: str, options: dict, per_machine: int) -> int:
    """The size of an actor's KV cache: its share of half the machine's free memory, and no more than its requests can
    fill."""
    stage = stage_of(package)
    free = stage.free_memory(torch.device("cpu"))
    return int(min(stage.most_cache_bytes(options), SHARE_OF_FREE_MEMORY * free / per_machine))


def look_at_model(package: str, model: dict[str, str | None]) -> str:
    """The hash of this machine's files of this model. Raises ValueError or OSError if it has none."""
    stage = stage_of(package)
    config: Any = stage.EngineConfig(**readable(model))
    return hash_of_checkpoint(stage, stage.find_model(config.model, config.load_format), config)
