"""Tasks for lm-evaluation-harness, made of tales that the bundled model has not seen.

    python -m tests.clients.make_tasks FOLDER     # three tasks: YAML files and their lines

`tales_choice`: which of four sentences of a tale comes next? `tales_perplexity`: how likely are whole tales?
`tales_sentence`: what is the next sentence, up to its end?
"""

import json
import random
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "tinytales"))
from tale_grammar import write_tale  # noqa: E402

SEEDS = range(500, 524)  # neither trained on nor in the model card's figures

TASK = """task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
num_fewshot: 0
metadata:
  version: 1
"""
TASKS = {
    "tales_choice": """output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
target_delimiter: " "
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "tales_perplexity": """output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: byte_perplexity
  - metric: bits_per_byte
""",
    "tales_sentence": """output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: " {{next}}"
generation_kwargs:
  until: ["."]
  max_gen_toks: 40
  do_sample: false
metric_list:
  - metric: exact_match
""",
}


def sentences(tale: str) -> list[str]:
    return re.split(r"(?<=[.!?]) ", tale.strip())


def lines() -> dict[str, list[dict]]:
    """What each task asks, one object per tale; a choice only where enough of the tale is left."""
    tales = [write_tale(seed).strip() for seed in SEEDS]
    draw, result = random.Random(0), {name: [] for name in TASKS}
    for tale in tales:
        parts = sentences(tale)
        middle = len(parts) // 2
        context, following, later = " ".join(parts[:middle]), parts[middle], parts[middle + 1 :]
        if len(later) >= 3:
            choices = [following, *draw.sample(later, 3)]
            draw.shuffle(choices)
            question = {"context": context, "choices": choices, "answer": choices.index(following)}
            result["tales_choice"].append(question)
        result["tales_perplexity"].append({"text": tale})
        result["tales_sentence"].append({"context": context, "next": following.rstrip(".")})
    return result


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, objects in lines().items():
        data = (folder / f"{name}.jsonl").resolve()
        data.write_text("".join(json.dumps(line) + "\n" for line in objects), encoding="utf-8")
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, data=data) + TASKS[name], encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
