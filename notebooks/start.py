"""The start of all notebooks here: the project next to them, installed if it is missing, and `run`."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not any(importlib.metadata.distributions(name="stagewise")):
    needed = ["--editable", str(ROOT), "--requirement", str(ROOT / "exercises/requirements.txt")]
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *needed], check=True)
os.chdir(ROOT)
sys.path.insert(0, str(ROOT))  # a package installed a moment ago is not on the path yet

import stagewise  # noqa: E402
from bench import plots, workloads  # noqa: E402, F401 (the notebooks take them from here)
from stagewise.resolve import readable_model  # noqa: E402
from tools.engines import STAGES  # noqa: E402

QUICK = os.environ.get("STAGEWISE_QUICK") == "1"  # the tests run the same cells with smaller numbers


def run(number, workload, model="tinytales", **arguments):
    """The requests of a workload through a stage: the engine, with its counters, and its records of a trace."""
    stage = STAGES[number - 1]
    load_format = "dummy" if model == "gpt2" else "auto"  # gpt2's sizes with random weights: nothing to download
    llm = stage.LLM(readable_model(model), load_format=load_format, **arguments)
    llm.generate([[1, 2, 3]], stage.SamplingParams(max_tokens=2))  # warm up
    llm.stats = type(llm.stats)()
    llm.trace = stagewise.trace(llm).records
    params = [stage.SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in workload]
    for _ in llm.stream([prompt for prompt, _ in workload], params):
        pass
    return llm
