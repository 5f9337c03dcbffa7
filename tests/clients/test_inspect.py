"""inspect-ai: an evaluation, with its `openai-api/`, and with `openai/` without the responses API.

`openai/` takes any name that it doesn't know for a model that reasons, and sends no temperature.
"""

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import includes


def evaluated(model, target, folder):
    task = Task(dataset=[Sample(input="Tell me a tale.", target=target)], scorer=includes())
    (log,) = eval(task, model=model, temperature=0, max_tokens=12, display="none", log_dir=str(folder))
    assert log.status == "success", log.error
    return log


def test_an_evaluation(url, texts, tmp_path):
    settings = {"base_url": f"{url}/v1", "api_key": "none"}
    log = evaluated(get_model("openai-api/stagewise/tinytales", **settings), texts[1][-5:], tmp_path)
    assert log.samples[0].output.completion == texts[1]
    assert log.results.scores[0].metrics["accuracy"].value == 1
    log = evaluated(get_model("openai/tinytales", responses_api=False, **settings), "", tmp_path)
    assert log.samples[0].output.usage.output_tokens == 12
