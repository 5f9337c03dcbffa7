"""Batch runs on real Ray: the same answers whatever process is killed; errors at once; a node that leaves."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.adapter import ROOT
from tests.test_batch_file import QUICK, near, read_results

FLAGS = ["--max-num-seqs", "4", *QUICK]
PATIENCE = 3600  # seconds, for what takes some: Ray starts a dozen processes for each run
KILLS = int(os.environ.get("STAGEWISE_KILLS", 2))  # at so many random moments, of an actor and of the driver


def every_kind_of_line(path, count, seed=0):
    """Texts and tokens, parameters of their own, choices, scores, OpenAI's lines, and all that is wrong with some."""
    rng, lines = random.Random(seed), []
    for i in range(count):
        line = {"id": f"q{i}", "answer": i, "prompt": " ".join(rng.choices(["A", "fox", "named", "Tom"], k=1 + i % 9))}
        match i % 12:
            case 1:
                del line["id"]
            case 2:
                line["sampling"] = {"temperature": 0, "max_tokens": 1 + i % 30}
            case 3:
                line |= {"prompt_token_ids": [rng.randrange(50257) for _ in range(5)]}
                del line["prompt"]
            case 4:
                line |= {"score": True, "choices": [" runs.", " and", "…"]}
            case 5:
                line |= {"sampling": {"n": 3, "max_tokens": 4, "seed": i}}
            case 6:
                line = {"custom_id": f"o{i}", "method": "POST", "url": "/v1/completions"}
                line["body"] = {"model": "tinytales", "prompt": "A fox", "max_tokens": 4, "seed": i}
            case 7 if i % 5 == 0:
                line["prompt"] = "word " * 2000  # too long
            case 8 if i % 5 == 0:
                line["sampling"] = {"temperature": -1}
            case 9 if i % 5 == 0:
                line["id"] = "q0"
            case 10 if i % 5 == 0:
                line = "no JSON"
        lines.append(line if isinstance(line, str) else json.dumps(line))
    path.write_text("\n".join(lines) + "\n")
    return count


def by_id(path):
    """The lines of a result file, sorted by id: byte for byte, except for the time in OpenAI's answers; and the scores,
    whose log-probabilities may be rounded differently in another batch."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        scores = result.pop("scores", None)
        if isinstance(result.get("response"), dict):
            del result["response"]["body"]["created"]
        if result != json.loads(line):
            line = json.dumps(result)
        lines.append((json.dumps(result.get("custom_id") or result["id"]), line, near(scores)))
    assert len({name for name, _, _ in lines}) == len(lines), "a line was answered twice"
    return sorted(lines)


def manifest_of(output):
    """Without what the driver can't know: with which instructions the actors compute."""
    run = json.loads(Path(f"{output}.run.json").read_text())
    del run["arithmetic"]
    return run


def command(source, output, *more):
    return [sys.executable, "-m", "stage05", "--input", str(source), "--output", str(output), *FLAGS, *map(str, more)]


def on_ray(source, output, *more, actors=2):
    return command(source, output, "--ray", "auto", "--actors", actors, *more)


def run(arguments, status=1):
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An input of 300 lines of every kind, and what a run without Ray makes of it."""
    folder = tmp_path_factory.mktemp("whole")
    every_kind_of_line(folder / "in.jsonl", 300)
    run(command(folder / "in.jsonl", folder / "out.jsonl"))
    return folder / "in.jsonl", by_id(folder / "out.jsonl")


def test_as_on_one_machine(tmp_path):
    count = every_kind_of_line(tmp_path / "in.jsonl", 1000, seed=1)
    run(command(tmp_path / "in.jsonl", tmp_path / "alone.jsonl"))
    stderr = run(on_ray(tmp_path / "in.jsonl", tmp_path / "out.jsonl"))
    assert by_id(tmp_path / "out.jsonl") == by_id(tmp_path / "alone.jsonl")
    assert len(read_results(tmp_path / "out.jsonl")) == count
    assert "lines are errors, see" in stderr
    assert manifest_of(tmp_path / "out.jsonl") == manifest_of(tmp_path / "alone.jsonl")


def actors():
    """The processes of the actors that run on this machine."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "Completer" in " ".join(process.info["cmdline"] or []):
            found.append(process)
    return found


def has_lines(output, count):
    return output.exists() and output.read_bytes().count(b"\n") > count


def wait_for(condition, process=None):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        assert process is None or process.poll() is None, "the driver has ended"
        time.sleep(0.02)


@pytest.mark.parametrize("moment", range(KILLS))
def test_an_actor_is_killed(tmp_path, whole, moment):
    source, expected = whole
    output = tmp_path / "out.jsonl"
    with subprocess.Popen(on_ray(source, output), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_for(actors, process)
        time.sleep(random.Random(moment).uniform(0, 6))
        for actor in actors()[:1]:
            actor.send_signal(signal.SIGKILL)
        _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, stderr
    assert by_id(output) == expected


@pytest.mark.parametrize("moment", range(KILLS))
def test_the_driver_is_killed(tmp_path, whole, moment):
    source, expected = whole
    output = tmp_path / "out.jsonl"
    with subprocess.Popen(on_ray(source, output), cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        wait_for(output.exists, process)
        time.sleep(random.Random(moment).uniform(0, 12))
        process.kill()
    wait_for(lambda: not actors())
    run(on_ray(source, output, "--resume"))
    assert by_id(output) == expected


def test_too_few_cpus_are_an_error_and_no_wait(tmp_path, whole):
    stderr = run(on_ray(whole[0], tmp_path / "out.jsonl", "--cpus-per-actor", 1000), status=2)
    assert "--actors 2 of 1000 CPUs each: 0 fit on machines with" in stderr
    stderr = run(command(whole[0], tmp_path / "b.jsonl", "--ray", "127.0.0.1:1"), status=2)
    assert "no cluster answers" in stderr


def test_control_c(tmp_path, whole):
    source, expected = whole
    output = tmp_path / "out.jsonl"
    with subprocess.Popen(on_ray(source, output), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: has_lines(output, 40), process)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    run(on_ray(source, output, "--resume"))
    assert by_id(output) == expected


def test_a_node_leaves(tmp_path, whole):
    """Two nodes on this machine; one is taken away in the middle."""
    import ray
    from ray.cluster_utils import Cluster

    source, expected = whole
    output = tmp_path / "out.jsonl"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        second = cluster.add_node(num_cpus=1)
        arguments = command(source, output, "--ray", cluster.address, "--actors", 2)
        with subprocess.Popen(arguments, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            wait_for(lambda: has_lines(output, 40), process)
            assert len(actors()) == 2
            cluster.remove_node(second)
            _, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1, stderr
        assert by_id(output) == expected
    finally:
        cluster.shutdown()
        ray.shutdown()
