"""The driver of a batch run on a cluster: it reads the lines, gives them ids and distributes them, and only it writes.

It loads no model. What it can't check itself, such as the length of a prompt, an actor checks and returns an error line
for. So no line can end the run, but for one that needs a package which is not installed.
"""

# pyright: reportMissingImports=false
# (Ray is only needed for batch runs on many machines.)

import contextlib
import json
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..batch_file import Answer, BatchJob, Counts, How, Job, LineReader, check_some, describe_batch, open_output
from ..dataset import check_columns, check_dataset, read_dataset
from ..resolve import readable
from ..stages import Stage
from .worker import Completer, look_at_model

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
LINES_PER_BATCH = 8  # that an actor gets at once, and loses if it dies
MAX_BATCHES = 20_000  # a larger input has larger batches, because Ray keeps track of each
ANSWER_SECONDS = 10  # that a cluster may take to answer
RETRIES = 3  # of a batch whose actor has died: a batch that kills its actors must not do so forever


@dataclass
class Cluster:
    """A run's demands on Ray: the command line's --ray, --actors, --cpus-per-actor, --gpus-per-actor."""

    address: str
    actors: int
    cpus: int
    gpus: float


def complete_file(
    stage: Stage,
    source: str,
    output: Path,
    options: dict,
    how: How,
    cluster: Cluster,
    *,
    resume: bool,
    quiet: bool,
) -> Counts:
    """Answer every line of an input that its output does not answer yet. options: of the engines.

    Raises:
        ValueError: as without Ray; or the cluster is too small, or a machine lacks the model.
        OSError: a file can't be read or written, or Ray has failed; what was written before is there.
    """
    check_dataset(source)
    dataset = read_dataset(source)
    check_columns(dataset, how.columns)
    setup = stage.setup(readable(options), "cuda" if cluster.gpus else "cpu")
    reader = LineReader(stage, setup.config, how)
    lines = reader.read_lines(dataset)
    check_some(lines, source)
    if not quiet:
        reader.tell_names(source)

    def complete(jobs: list[Job]) -> Iterator[Answer]:
        rows = []
        for place, line in jobs:
            number, raw = dataset.rows[place]
            rows.append({"place": place, "number": number, "raw": raw, "id": json.dumps(line.id)})
        return completed(stage.package, rows, options, how, cluster)

    with open_output(source, output, resume) as file:
        job = BatchJob(lines, describe_batch(stage, setup, dataset, how), file)
        return job.run(complete, longest_first=True, quiet=quiet)


def completed(package: str, rows: list[dict], options: dict, how: How, cluster: Cluster) -> Iterator[Answer]:
    """The answer to each row, as soon as its batch is done."""
    import ray
    import ray.data
    import ray.util.annotations
    from ray.exceptions import RayError

    connect(cluster.address)
    try:
        per_machine = check_cluster(cluster)
        check_model(package, {name: options.get(name) for name in ("model", "load_format", "tokenizer")})
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        context.execution_options.preserve_order = False
        size = max(LINES_PER_BATCH, -(-len(rows) // MAX_BATCHES))
        at_once = 2 + options["max_num_seqs"] // size  # so that the engine stays full while a batch ends
        warnings.simplefilter("ignore", ray.util.annotations.RayDeprecationWarning)
        data = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // size)).map_batches(
            Completer,
            fn_constructor_args=(package, options, how, per_machine, cluster.cpus, cluster.gpus),
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(
                size=cluster.actors,
                max_tasks_in_flight_per_actor=at_once,  # no more, or the first actor that is ready takes them all
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
    except RayError as error:
        raise OSError(f"Ray: {last_line(error)}") from error
    finally:
        ray.shutdown()


def connect(address: str) -> None:
    """Join a running cluster; "auto": this machine's, or a new one on this machine alone."""
    import ray

    logging.disable(logging.WARNING)  # Ray's; this module reports what the user needs to know
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
    """Hide what Ray's C++ writes straight to stderr while it starts: errors come as exceptions."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


def check_cluster(cluster: Cluster) -> int:
    """How many actors may share a machine. Raises ValueError if there is no room for all: Ray would wait forever."""
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


def check_model(package: str, model: dict[str, str | None]) -> None:
    """Raise ValueError if a machine lacks the model, or has a different one with this name."""
    import ray
    from ray.exceptions import RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = look_at_model(package, model)
    look = ray.remote(num_cpus=0, max_retries=0)(look_at_model)
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    hashes = {
        name: look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(package, model)
        for node, name in nodes.items()
    }
    for name, there in hashes.items():
        try:
            if ray.get(there) != here:
                raise ValueError(f"the machine {name} has a different model named {model['model']!r}")
        except RayTaskError as error:
            raise ValueError(f"the machine {name} can't load the model: {last_line(error)}") from None


def last_line(error: BaseException) -> str:
    """The message of a Ray error, without the other process's traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
