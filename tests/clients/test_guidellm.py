"""guidellm in each of its profiles, with both formats of requests, streamed and not: no request fails."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.server import ROOT

PROFILES = {
    "synchronous": "",
    "concurrent": ",streams=4",
    "throughput": ",max_concurrency=4",
    "constant": ",rate=4",
    "async": ",rate=4",
    "poisson": ",rate=4",
    "sweep": ",sweep_size=3",
    "knee": ",min_streams=1,max_streams=5,count=5",
    "goodput": ",max_streams=4,max_probes=2",
    "replay": "",
}
GOODPUT = ["--metrics", json.dumps({"kind": "generative", "slo": {"ttft_ms": 60000}})]
TRACE = [{"timestamp": i / 4, "input_length": 16, "output_length": 8} for i in range(4)]


def guidellm(url, folder, profile, more=(), **backend):
    """The benchmarks of a run, each with the counts of its requests."""
    output, trace = folder / "result.json", folder / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in TRACE), encoding="utf-8")
    told = "".join(f",{name}={value}" for name, value in backend.items())
    data = "kind=synthetic_text,prompt_tokens=16,output_tokens=8"
    if profile.startswith("kind=replay"):
        data = json.dumps({"kind": "trace_synthetic", "source": {"kind": "json_file", "path": str(trace)}})
    command = [Path(sys.executable).parent / "guidellm", "run", "--disable-console", "--profile", profile, *more]
    command += ["--backend", f"kind=openai_http,target={url},model=tinytales{told}", "--data", data]
    command += ["--tokenizer", f"kind=huggingface_auto,model={ROOT / 'models' / 'tinytales'}"]
    command += ["--constraint", "kind=max_requests,count=4", "--output", f"kind=json,path={output}"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return json.loads(output.read_text(encoding="utf-8"))["benchmarks"]


def check(benchmarks):
    for benchmark in benchmarks:
        totals = benchmark["metrics"]["request_totals"]
        assert totals["errored"] == 0
        assert totals["successful"] > 0
        assert benchmark["metrics"]["output_token_count"]["successful"]["mean"] == 8


@pytest.mark.parametrize("kind", PROFILES)
def test_profiles(url, tmp_path, kind):
    profile = f"kind={kind}{PROFILES[kind]}"
    check(guidellm(url, tmp_path, profile, GOODPUT if kind == "goodput" else (), request_format="/v1/completions"))


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_formats(url, tmp_path, path, stream):
    check(guidellm(url, tmp_path, "kind=synchronous", request_format=path, stream=stream))
