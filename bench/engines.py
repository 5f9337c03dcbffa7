"""Runs one engine once on a workload, in a separate process, and writes the result to a file.

    python -m bench.engines JOB.json RESULT.json

`bench/throughput.py` calls it with the Python of the engine's environment. A peer's (see `bench/peers.py`) has none of
this project's packages, so nothing is imported before it is known which engine it is.
"""

import json
import statistics
import sys
import time
from collections import deque
from pathlib import Path

from bench.memory import peak_memory

Times = list[list[float]]  # for each request, when each of its tokens came, in seconds from the start


def run_stage(job: dict) -> dict:
    """Run a stage: what `run_engine` returns."""
    import stagewise
    from stagewise.stages import limit_threads
    from tools.engines import STAGES

    stage = next(stage for stage in STAGES if stage.directory == job["engine"])
    arguments = {name: value for name, value in job["options"].items() if stage.has_option(name)}
    llm = stage.LLM(job["model"], load_format=job["load_format"], dtype=job["dtype"], device=job["device"], **arguments)
    limit_threads(stage, llm)
    return run_engine(job, stage, llm, stagewise.trace(llm).records)


def run_own(job: dict) -> dict:
    """Run a user's own engine in the same way; it needs neither statistics nor a trace."""
    from tools.engines import OwnEngine

    own = OwnEngine(job["own"][job["engine"]])
    told = {name: job[name] for name in ("load_format", "dtype", "device")}
    return run_engine(job, own, own.engine(job["model"], {**told, **job["options"]}), [])


def run_engine(job: dict, stage, llm, records: list) -> dict:
    """What an engine did: its tokens, their times, and what its statistics say.

    Args:
        stage: has the SamplingParams that the engine takes.
        records: the records of a trace of the engine; empty for an engine without one.
    """
    import torch

    from bench.machine import describe

    prompts = [prompt for prompt, _ in job["requests"]]
    params = [
        stage.SamplingParams(**job["sampling"], seed=i, max_tokens=n, ignore_eos=True)
        for i, (_, n) in enumerate(job["requests"])
    ]
    two = stage.SamplingParams(**job["sampling"], max_tokens=2, ignore_eos=True)
    at_once(llm, job["warm_up"], [two] * len(job["warm_up"]))
    stats = getattr(llm, "stats", None)
    if stats is not None:
        llm.stats = type(stats)()
    records.clear()
    tokens, times, seconds = at_once(llm, prompts, params)
    count = lambda name: getattr(llm.stats, name, None) if stats is not None else None  # noqa: E731
    rows = [sum(row.num_tokens > 0 for row in step.rows) for step in records]
    computed, padding, reserved = map(count, ("num_tokens_computed", "num_padding_tokens", "kv_tokens_reserved"))
    return {
        "token_ids": tokens,
        "times": times,
        "seconds": seconds,
        "machine": describe(torch.device(job["device"])),
        "int8": bool(getattr(getattr(getattr(llm, "engine", None), "runner", None), "int8", False)),
        "peak_bytes": peak_memory(job["device"].startswith("cuda")),
        "forwards": count("num_forwards"),
        "tokens_computed": computed,
        "padding_share": None if computed is None or padding is None else padding / (padding + computed),
        "rows_mean": statistics.mean(rows) if rows else None,
        "rows_max": max(rows, default=None),
        "kv_used_share": count("kv_tokens_used") / reserved if reserved else None,
        "preemptions": count("num_preemptions"),
    }


def at_once(llm, prompts: list, params: list) -> tuple[list[list[int]], Times, float]:
    """Send all requests at the start. Returns (their tokens, their times, seconds)."""
    tokens, times = [[] for _ in prompts], [[] for _ in prompts]
    started = time.perf_counter()
    for event in llm.stream(prompts, params):
        now = time.perf_counter() - started
        tokens[event.index] += event.token_ids
        times[event.index] += [now] * len(event.token_ids)
    return tokens, times, time.perf_counter() - started


def as_they_arrive(llm, prompts: list, params: list, arrivals: list[float]) -> tuple[list[list[int]], Times, float]:
    """Send each request when it arrives, or at the end of the step that is running then. llm: a Stepper, or an engine
    with the same methods."""
    tokens, times = [[] for _ in prompts], [[] for _ in prompts]
    pending = deque(enumerate(arrivals))
    started = time.perf_counter()
    while pending or llm.has_unfinished_requests():
        now = time.perf_counter() - started
        while pending and pending[0][1] <= now:
            i, _ = pending.popleft()
            llm.add_request(str(i), prompts[i], params[i])
        if not llm.has_unfinished_requests():
            time.sleep(pending[0][1] - now)
            continue
        outputs = llm.step()
        now = time.perf_counter() - started
        for output in outputs:
            i, ids = int(output.request_id), output.outputs[0].token_ids
            times[i] += [now] * (len(ids) - len(tokens[i]))
            tokens[i] = ids
    return tokens, times, time.perf_counter() - started


def main() -> None:
    job_file, result_file = map(Path, sys.argv[1:])
    job = json.loads(job_file.read_text())
    if job["engine"].startswith("stage"):
        result = run_stage(job)
    elif job["engine"] in job.get("own", ()):
        result = run_own(job)
    else:
        from bench.peers import PEERS

        result = PEERS[job["engine"]].run(job)
    made, asked = [len(ids) for ids in result["token_ids"]], [n for _, n in job["requests"]]
    if made != asked:
        wrong = next(i for i, (m, a) in enumerate(zip(made, asked, strict=True)) if m != a)
        sys.exit(f"{job['engine']} made {made[wrong]} tokens for request {wrong}, {asked[wrong]} were asked for")
    result_file.write_text(json.dumps({"engine": job["engine"], **result}))


if __name__ == "__main__":
    main()
