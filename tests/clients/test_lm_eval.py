"""lm-evaluation-harness, unmodified and offline: the same scores through the server as with its own model."""

import os

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}  # before it is imported: everything is here

import lm_eval
from lm_eval.tasks import TaskManager

from tests.clients import make_tasks
from tools.server import ROOT, server

TINYTALES = ROOT / "stagewise" / "models" / "tinytales"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of its own model and of the server: what `simple_evaluate` returns."""
    folder = tmp_path_factory.mktemp("tasks")
    make_tasks.main(folder)

    def evaluate(kind: str, **arguments) -> dict:
        listed = ",".join(f"{name}={value}" for name, value in arguments.items())
        tasks = TaskManager(include_path=str(folder), include_defaults=False)
        return lm_eval.simple_evaluate(kind, listed, tasks=list(make_tasks.TASKS), task_manager=tasks, device="cpu")

    own = evaluate("hf", pretrained=TINYTALES, dtype="float32")
    with server("--stage", 6, "--model", "tinytales") as (url, _):
        completions = {"base_url": f"{url}/v1/completions", "model": "tinytales", "tokenizer": TINYTALES}
        ours = evaluate("local-completions", **completions, num_concurrent=8, max_length=1024)
    return own, ours


def test_the_scores_are_the_same(results):
    own, ours = (result["results"] for result in results)
    for task, metrics in own.items():
        for name, value in metrics.items():
            if isinstance(value, float):
                assert ours[task][name] == pytest.approx(value, abs=1e-4), (task, name)
    assert own["tales_choice"]["acc,none"] > 0.4  # by chance it would be 0.25
    assert own["tales_sentence"]["exact_match,none"] > 0


def test_every_answer_is_the_same(results):
    """Every log-probability of a text, and every generated one."""
    own, ours = (result["samples"] for result in results)
    for task, samples in own.items():
        answers = {sample["doc_id"]: sample["filtered_resps"] for sample in ours[task]}
        for sample in samples:
            for answer, expected in zip(answers[sample["doc_id"]], sample["filtered_resps"], strict=True):
                if task == "tales_sentence":
                    assert answer == expected
                elif task == "tales_choice":  # (log-probability, whether it is greedy)
                    assert answer[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-3)
                    assert answer[1] == expected[1]
                else:
                    assert answer == pytest.approx(expected, rel=1e-4, abs=1e-3)
