"""What a batch run writes is read by `datasets` and by pandas, several outputs together."""

import decimal
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.adapter import STAGES

SCHEMA = pa.schema(
    {
        "prompt": pa.string(),
        "note": pa.string(),
        "price": pa.decimal128(6, 2),
        "image": pa.binary(),
        "meta": pa.struct({"tags": pa.list_(pa.string()), "deep": pa.struct({"n": pa.int64()})}),
        "never": pa.string(),
    }
)


def features():
    """What `datasets` calls the columns of an output of these."""
    from datasets import Features, List, Value

    text, names = Value("string"), ("prompt", "note", "price", "image", "never", "id", "text")
    more = dict.fromkeys((*names, "finish_reason", "stop_reason"), text)
    meta = {"tags": List(text), "deep": {"n": Value("int64")}}
    return Features({**more, "meta": meta, "token_ids": List(Value("int64"))})


def rows(shard: int) -> list[dict]:
    """One column is all null in the first shard but not in the second; another is all null in both."""
    return [
        {
            "prompt": prompt,
            "note": "a note" if shard else None,
            "price": decimal.Decimal("1.50") + i,
            "image": bytes([i, 255]),
            "meta": {"tags": ["a", None][:i], "deep": {"n": i if shard else None}},
            "never": None,
        }
        for i, prompt in enumerate(["A fox", "Once upon a time", "There was"])
    ]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs for two parquet files; in the first, all texts end by themselves."""
    folder = tmp_path_factory.mktemp("shards")
    for shard, most in enumerate((1000, 4)):
        source, output = folder / f"in{shard}.parquet", folder / f"out{shard}.jsonl"
        pq.write_table(pa.Table.from_pylist(rows(shard), schema=SCHEMA), source)
        flags = ["--max-tokens", most, "--temperature", 0, "--quiet"]
        assert STAGES[4].main("--input", source, "--output", output, *flags)[0] == 0
    return [folder / "out0.jsonl", folder / "out1.jsonl"]


def lines(paths) -> list[dict]:
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("order", [1, -1])
def test_datasets(outputs, order, tmp_path):
    import datasets

    files = list(map(str, outputs[::order]))
    found = datasets.load_dataset("json", data_files=files, split="train", features=features(), cache_dir=str(tmp_path))
    assert list(found) == lines(outputs[::order])
    assert found.features == features()


def test_datasets_without_names_of_types(outputs, tmp_path):
    """Where the first file has a value in each column, or all lines are given at once, none need be named."""
    import datasets

    files = list(map(str, outputs[::-1]))
    found = datasets.load_dataset("json", data_files=files, split="train", cache_dir=str(tmp_path))
    assert list(found) == lines(outputs[::-1])
    assert list(datasets.Dataset.from_list(lines(outputs))) == lines(outputs)


def test_pandas(outputs):
    import pandas as pd

    found = pd.concat([pd.read_json(path, lines=True, dtype=False) for path in outputs])
    assert found.astype(object).where(found.notna(), None).to_dict("records") == lines(outputs)
