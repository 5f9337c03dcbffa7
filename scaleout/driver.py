"""The driver of a batch run on a cluster: it reads the lines and names them, hands them out, and alone writes.

It loads no model. What it does not check itself (whether a prompt fits, say) an actor answers with an error line, so
no line can end the run.
"""

import contextlib
import importlib
import json
import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tqdm import tqdm

from .worker import Completer, look_at_model

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run sends nothing anywhere
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
SYNC_SECONDS = 1
LINES_PER_SHARD = 100_000
LINES_PER_BATCH = 8  # what an actor gets at once, and at most loses when it dies
MOST_BATCHES = 20_000  # of a larger input the batches are larger: Ray keeps books on each
ANSWER_SECONDS = 10  # that a cluster may take to answer
RETRIES = 3  # of a batch whose actor has died: one that kills every actor must not do so for ever


@dataclass
class Cluster:
    """What a run asks of Ray: the command line's --ray, --actors, --cpus-per-actor, --gpus-per-actor."""

    address: str
    actors: int
    cpus: int
    gpus: float


class Unloaded:
    """An engine without a model, as far as reading lines and describing the run need one."""

    def __init__(self, package: str, options: dict, device: str):
        config, weights = (importlib.import_module(f"{package}.{name}") for name in ("config", "weights"))
        self.config = config.EngineConfig(**options)
        self.directory = weights.find_model(self.config.model, self.config.load_format)
        sizes = weights.read_config(self.config.model, self.directory, self.config.load_format)
        self.max_model_len = config.pick_max_model_len(self.config.max_model_len, sizes.n_positions)
        self.runner = SimpleNamespace(dtype=config.pick_dtype(self.config.dtype, SimpleNamespace(type=device)))
        self.engine = self

    def validate(self, *_) -> None:
        """The actors do."""


class Shard:
    """A file of results, locked as long as this is there, and the lines whose results go there."""

    def __init__(self, batch_file: ModuleType, source: str, path: Path, resume: bool):
        self._batch_file, self._manifest = batch_file, importlib.import_module(f"{batch_file.__package__}.manifest")
        self.file = batch_file.open_output(source, path, resume)
        self._synced = time.monotonic()

    def begin(self, lines: list[Any], run: dict) -> dict[str | int, bool]:
        """Claim the file for this run, or check that it is this run's. Returns the ids that it answers already, each
        with whether by an error."""
        is_new = os.fstat(self.file.fileno()).st_size == 0
        (self._manifest.begin if is_new else self._manifest.resume)(self.file.name, run)
        return self._batch_file.read_finished(self.file, {line.id: line for line in lines})

    def write(self, result: bytes) -> None:
        self._batch_file.append(self.file, result)
        if time.monotonic() > self._synced + SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        self._batch_file.sync(self.file)
        self._synced = time.monotonic()

    def close(self) -> None:
        self.file.close()


def shards_of(num_lines: int, output: Path) -> list[Path]:
    """The files of an output: a directory has one for every so many lines of the input."""
    if not output.is_dir():
        return [output]
    return [output / f"part-{i:05}.jsonl" for i in range(max(1, -(-num_lines // LINES_PER_SHARD)))]


def run(
    package: str,
    source: str,
    output: Path,
    options: dict,
    defaults: Any,
    cluster: Cluster,
    *,
    resume: bool,
    quiet: bool,
) -> tuple[int, int]:
    """Answer every line of an input that its output does not answer yet.

    Returns:
        how many lines the output has, and how many of them are errors.

    Raises:
        ValueError: as without Ray; or the cluster is too small, or a machine lacks the model.
        OSError: a file can't be read or written, or Ray has failed; what was written before is there.
    """
    batch_file, manifest = (importlib.import_module(f"{package}.{name}") for name in ("batch_file", "manifest"))
    dataset_part = importlib.import_module(f"{package}.dataset")
    dataset_part.check_dataset(source)
    dataset = dataset_part.read_dataset(source)
    engine = Unloaded(package, options, "cuda" if cluster.gpus else "cpu")
    lines = batch_file.read_lines(engine, dataset, defaults)
    described = manifest.describe_run(engine, dataset, defaults)
    paths = shards_of(len(lines), output)
    shards, finished = [], {}
    try:
        for i, path in enumerate(paths):
            shards.append(Shard(batch_file, source, path, resume))
            own = lines if len(paths) == 1 else lines[i * LINES_PER_SHARD : (i + 1) * LINES_PER_SHARD]
            part = {} if len(paths) == 1 else {"part": i, "parts": len(paths)}
            finished |= shards[i].begin(own, described | part)
        todo = [(place, line) for place, line in enumerate(lines) if line.id not in finished]
        num_errors = sum(finished.values())

        def write(place: int, result: bytes) -> None:
            shards[0 if len(shards) == 1 else place // LINES_PER_SHARD].write(result)
            bar.update()

        with tqdm(total=len(lines), initial=len(finished), unit="line", disable=quiet) as bar:
            for place, line in todo:
                if line.error:
                    write(place, batch_file.to_json(line.refusal()).encode())
                    num_errors += 1
            good = [(place, line) for place, line in todo if not line.error]
            good.sort(key=lambda pair: -pair[1].params.max_tokens)  # the longest first, as without Ray
            rows = []
            for place, line in good:
                number, raw = dataset.rows[place]
                rows.append({"place": place, "number": number, "raw": raw, "id": json.dumps(line.id)})
            if rows:
                for place, result, is_error in completed(package, rows, options, defaults, cluster):
                    write(place, result)
                    num_errors += is_error
    finally:
        for shard in shards:
            shard.sync()
            shard.close()
    return len(lines), num_errors


def completed(
    package: str, rows: list[dict], options: dict, defaults: Any, cluster: Cluster
) -> Iterator[tuple[int, bytes, bool]]:
    """(place, result, whether it is an error) of each row, as soon as its batch is done."""
    import ray
    import ray.data
    import ray.util.annotations

    connect(cluster.address)
    try:
        per_machine = check_cluster(cluster)
        check_model(package, options["model"], options["load_format"])
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.execution_options.preserve_order = False
        size = max(LINES_PER_BATCH, -(-len(rows) // MOST_BATCHES))
        at_once = 2 + options["max_num_seqs"] // size  # so that the engine is full while a batch comes to its end
        warnings.simplefilter("ignore", ray.util.annotations.RayDeprecationWarning)
        data = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // size)).map_batches(
            Completer,
            fn_constructor_args=(package, options, defaults, per_machine, cluster.cpus, cluster.gpus),
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(
                size=cluster.actors,
                max_tasks_in_flight_per_actor=at_once,  # no more: else the first actor that is ready takes them all
                max_concurrent_calls_per_actor=at_once,
                enable_true_multi_threading=True,
            ),
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            max_task_retries=RETRIES,
        )
        for batch in data.iter_batches(batch_size=None, prefetch_batches=0):
            yield from zip(
                batch["place"].tolist(), map(bytes, batch["result"]), batch["is_error"].tolist(), strict=True
            )
    except ray.exceptions.RayError as error:
        raise OSError(f"Ray: {last_line(error)}") from error
    finally:
        ray.shutdown()


def connect(address: str) -> None:
    """Join a running cluster; with "auto" one that this machine is part of, else begin one on this machine alone."""
    import ray

    logging.disable(logging.WARNING)  # Ray's; what the user has to know is told here
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    host, _, port = address.rpartition(":")
    try:
        if port.isdecimal() and "/" not in host:  # Ray itself would try for many minutes
            socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()
        with silence():
            ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:  # a ConnectionError is an OSError
        if address != "auto" or not isinstance(error, ConnectionError):
            raise OSError(f"--ray {address}: no cluster answers: {last_line(error)}") from error
        with silence():
            ray.init(include_dashboard=False, **quiet)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """What Ray's C++ writes straight to stderr while it starts is not for users: errors come as exceptions."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def check_cluster(cluster: Cluster) -> int:
    """How many actors may come to share a machine. Raises ValueError if there is no room for all: Ray would wait for
    ever."""
    import ray

    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fit = [int(node.get("CPU", 0) // cluster.cpus) for node in there]
    if cluster.gpus:
        fit = [min(n, int(node.get("GPU", 0) // cluster.gpus)) for n, node in zip(fit, there, strict=True)]
    if sum(fit) < cluster.actors:
        has = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in there)
        asked = f"{cluster.cpus} CPUs" + (f" and {cluster.gpus:g} GPUs" if cluster.gpus else "")
        raise ValueError(f"--actors {cluster.actors} of {asked} each: {sum(fit)} fit on machines with {has}")
    return min(max(fit), cluster.actors)


def check_model(package: str, model: str, load_format: str) -> None:
    """Raise ValueError if a machine lacks the model, or has another of this name."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = look_at_model(package, model, load_format)
    look = ray.remote(num_cpus=0, max_retries=0)(look_at_model)
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    hashes = {
        name: look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            package, model, load_format
        )
        for node, name in nodes.items()
    }
    for name, there in hashes.items():
        try:
            if ray.get(there) != here:
                raise ValueError(f"the machine {name} has another model of the name {model!r}")
        except ray.exceptions.RayTaskError as error:
            raise ValueError(f"the machine {name} can't load the model: {last_line(error)}") from None


def last_line(error: BaseException) -> str:
    """What an error of Ray says, without the trace of another process."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
