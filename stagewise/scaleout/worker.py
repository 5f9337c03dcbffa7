"""What runs on the machines of a cluster: an actor with an engine, which stays full while rows come and go."""

import importlib
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import psutil

SHARE_OF_FREE_MEMORY = 0.5  # for the KV caches of all actors of a machine together


class Completer:
    """An engine that completes batches of lines, several batches at once, each in a thread of its own.

    A batch that had to end before the next one may begin would leave the engine half empty at the end of each.

    Args:
        package: of the stage.
        options: of the engine.
        defaults: the sampling parameters of the command line.
        per_machine: how many such actors share a machine's memory.
        num_cpus, num_gpus: that this one may use.
    """

    def __init__(self, package: str, options: dict, defaults: Any, per_machine: int, num_cpus: int, num_gpus: float):
        import torch

        self.batch_file = importlib.import_module(f"{package}.batch_file")
        async_llm = importlib.import_module(f"{package}.async_llm")
        torch.set_num_threads(num_cpus)
        if not num_gpus and options.get("num_blocks") is None and options["kv_cache_bytes"] is None:
            options = {**options, "kv_cache_bytes": cache_bytes(package, options, per_machine)}
        self.engine = async_llm.AsyncLLM(**options, max_queue_size=2**31 - 1)
        self.defaults = defaults
        self.feed = SimpleNamespace(as_completed=self._as_completed)

    def _as_completed(self, prompts: list, params: list, priority: list):
        return enumerate(self.engine.complete_all(prompts, params, priority=priority))

    def __call__(self, batch: dict) -> dict:
        """The results of a batch of lines.

        Args:
            batch: columns place, number (of the line in its file), raw (the line) and id (as JSON).

        Returns:
            columns place, result (a line of JSON) and is_error.
        """
        try:
            return self._complete(batch)
        except RuntimeError as error:
            # The engine has failed. Ray starts an actor again whose process has ended, and only then.
            print(f"scaleout: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def _complete(self, batch: dict) -> dict:
        lines, results = [], {}
        for place, number, raw, name in zip(*(batch[c] for c in ("place", "number", "raw", "id")), strict=True):
            line = self.batch_file.read_line(self.engine.llm, bytes(raw), int(number), self.defaults)
            line.id = json.loads(name)  # the driver has seen all ids, and has named those that had none
            lines.append((int(place), line))
        places = {id(line): place for place, line in lines}
        for line in (line for _, line in lines if line.error):
            results[places[id(line)]] = line.refusal()
        for line, outputs in self.batch_file.completed(self.feed, [line for _, line in lines if not line.error]):
            results[places[id(line)]] = self.batch_file.result_of(line, outputs)
        is_error = [self.batch_file.is_error(result) for result in results.values()]
        lines = [self.batch_file.to_json(result).encode() for result in results.values()]
        return {"place": list(results), "result": lines, "is_error": is_error}


def cache_bytes(package: str, options: dict, per_machine: int) -> int:
    """The KV cache of one of several actors on a machine: its part of half of the free memory, and no more than its
    requests can fill."""
    part = {name: importlib.import_module(f"{package}.{name}") for name in ("config", "weights", "kv_cache")}
    config = part["config"].EngineConfig(**options)
    directory = part["weights"].find_model(config.model, config.load_format)
    sizes = part["weights"].read_config(config.model, directory, config.load_format)
    dtype = part["config"].pick_dtype(config.dtype, part["config"].pick_device(config.device))
    longest = part["config"].pick_max_model_len(config.max_model_len, sizes.n_positions)
    block = getattr(config, "block_size", 1)
    per_token = part["kv_cache"].bytes_per_token(sizes.n_layer, sizes.n_embd, dtype)
    most = config.max_num_seqs * -(-longest // block) * block * per_token
    return int(min(most, SHARE_OF_FREE_MEMORY * psutil.virtual_memory().available / per_machine))


def look_at_model(package: str, model: str, load_format: str) -> str:
    """The hash of a machine's files of the model. Raises ValueError or OSError if it has none."""
    weights = importlib.import_module(f"{package}.weights")
    directory = weights.find_model(model, load_format)
    return importlib.import_module(f"{package}.manifest").hash_of_checkpoint(directory, model, load_format)
