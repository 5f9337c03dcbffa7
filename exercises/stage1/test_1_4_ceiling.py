"""The formulas against counts by hand and against torch's own counter; then a prediction, locked, and a measurement."""

import math
import time
from numbers import Real

import torch
from exercises.examples import Example, at_random
from exercises.grading import expect, require

from exercises.catalogue import lock
from tools.engines import STAGES

SMALL = dict(n_layer=12, n_embd=768, n_inner=3072, vocab_size=50257)
TINY = dict(n_layer=3, n_embd=4, n_inner=10, vocab_size=7)


def test_parameters(work):
    layer = 4 * 12 + 4 * 4 + 4 * 10 + 10 * 4
    said = {
        "queries, keys and values take three matrices": 3 * (layer - 2 * 4 * 4) + 28,
        "the feed-forward layer has two matrices, there and back": 3 * (layer - 40) + 28,
        "the last matrix, to the vocabulary, is missing": 3 * layer,
        "each layer has its own matrices": layer + 28,
        "n_inner is a separate size, not always 4 n_embd": 3 * (4 * 12 + 4 * 4 + 2 * 4 * 16) + 28,
    }
    expect(f"parameters of {TINY}", work.parameters(**TINY), 3 * layer + 28, said)
    expect("parameters of GPT-2 small", work.parameters(**SMALL), 123_532_032)


def test_flops(work):
    weights = work.parameters(**TINY)
    attention = 3 * (2 * 4 + 2 * 4)  # in three layers, two operations per number of a key and of a value
    said = {
        "a multiplication and an addition for each weight: two operations": weights + 5 * attention,
        "attention is missing: it looks at all keys and adds up all values": 2 * weights,
        "attention reads the keys, and then the values": 2 * weights + 5 * attention // 2,
        "attention happens in every layer": 2 * weights + 5 * attention // 3,
    }
    expect(f"flops of {TINY} at a context of 5", work.flops(**TINY, context=5), 2 * weights + 5 * attention, said)


def test_bytes(work):
    weights, cached = work.parameters(**TINY), 3 * 2 * 4
    said = {
        "the cache is missing": 4 * weights,
        "the cache holds a key and a value of each token": 4 * (weights + 5 * cached // 2),
        "numbers were counted, not bytes": weights + 5 * cached,
    }
    got = work.bytes_read(**TINY, context=5, itemsize=4)
    expect(f"bytes of {TINY} at a context of 5, 4 bytes each", got, 4 * (weights + 5 * cached), said)
    large = dict(n_layer=48, n_embd=1600, n_inner=6400, vocab_size=50257)
    expect("bytes of GPT-2 XL, nothing cached, 4 bytes each", work.bytes_read(**large, context=0, itemsize=4), 4 * 1_554_971_200,
           {"more than 2 billion: too large for int32": 4 * 1_554_971_200 - 2**32})  # fmt: skip


def test_ceiling(work):
    weights = work.parameters(**TINY)
    operations, cached = work.flops(**TINY, context=5), 4 * 5 * 24
    for batch in (1, 3, 50):
        for bandwidth, rate in ((1e3, 1e9), (1e9, 1e3), (1e3, 3e3)):
            reading, computing = (4 * weights + batch * cached) / bandwidth, batch * operations / rate
            said = {
                "reading and computing overlap: the slower one counts, not the sum": batch / (reading + computing),
                "a batch reads the weights once, not once for each sequence":
                    batch / max(batch * (4 * weights + cached) / bandwidth, computing),
                "the slower one limits, not the faster": batch / min(reading, computing),
                "each of the sequences computes": batch / max(reading, computing / batch),
                "a step makes a token for each of the sequences": 1 / max(reading, computing),
                "each sequence has its own cache": batch / max((4 * weights + cached) / bandwidth, computing),
                "the cache is read in bytes, not in numbers":
                    batch / max((4 * weights + batch * cached / 4) / bandwidth, computing),
            }  # fmt: skip
            got = work.tokens_per_second(TINY, 5, 4, batch, bandwidth, rate)
            case = f"{TINY}, context 5, 4 bytes, batch {batch}, {bandwidth:g} bytes/s, {rate:g} operations/s"
            expect(case, got, batch / max(reading, computing), said)


def counted(n_layer, n_embd, n_inner, vocab_size, context):
    """(weights, cached numbers), matrix by matrix and token by token."""
    matrices = [(n_embd, n_embd)] * 4 + [(n_embd, n_inner), (n_inner, n_embd)]
    weights = sum(rows * columns for _ in range(n_layer) for rows, columns in matrices) + n_embd * vocab_size
    return weights, sum(len(("key", "value")) * n_embd for _ in range(n_layer) for _ in range(context))


def test_any_sizes(work):
    def check(choose):
        sizes = dict(n_layer=choose.between(1, 9), n_embd=choose.between(1, 99), n_inner=choose.between(1, 99),
                     vocab_size=choose.between(1, 999))  # fmt: skip
        context, itemsize, batch = choose.upto(2000), choose.one_of([1, 2, 4]), choose.between(1, 40)
        bandwidth, rate = choose.one_of([1.0, 1e3, 1e6]), choose.one_of([1.0, 2e3, 1e6])
        weights, cached = counted(**sizes, context=context)
        example = Example(work, __file__)
        example.do(f"sizes = {sizes}")
        example.look("work.parameters(**sizes)", weights)
        example.look(f"work.flops(**sizes, context={context})", 2 * weights + 2 * cached)
        example.look(f"work.bytes_read(**sizes, context={context}, itemsize={itemsize})", itemsize * (weights + cached))
        reading = itemsize * (weights + batch * cached) / bandwidth
        ceiling = batch / max(reading, batch * 2 * (weights + cached) / rate)
        arguments = f"sizes, {context}, {itemsize}, {batch}, {bandwidth}, {rate}"
        example.look(f"1e6 * work.tokens_per_second({arguments})", 1e6 * ceiling)
        example.look("sizes", sizes, likely="the caller's sizes were changed")

    at_random(check)


def test_large_models(work):
    """Sizes at which a count no longer fits into 32 bits, and every unit counts."""
    sizes = dict(n_layer=300, n_embd=12_288, n_inner=49_153, vocab_size=100_003)
    weights = 300 * (4 * 12_288**2 + 2 * 12_288 * 49_153) + 12_288 * 100_003
    cached = 300 * 2 * 12_288 * 100_001
    expect(f"parameters of {sizes}", work.parameters(**sizes), weights)
    expect("flops at a context of 100,001", work.flops(**sizes, context=100_001), 2 * (weights + cached))
    expect("bytes at this context", work.bytes_read(**sizes, context=100_001, itemsize=2), 2 * (weights + cached))
    reading, computing = 2 * (weights + 300 * cached) / 1e12, 300 * 2 * (weights + cached) / 1e15
    expect("300 sequences of this context", work.tokens_per_second(sizes, 100_001, 2, 300, 1e12, 1e15),
           300 / max(reading, computing), tolerance=1e-9)  # fmt: skip


def test_prediction(work):
    """Never wrong, but kept before the measurement, which runs only once the functions are right."""
    for test in (test_parameters, test_flops, test_bytes, test_ceiling, test_any_sizes, test_large_models):
        test(work)
    number = isinstance(work.PREDICTION, Real) and not isinstance(work.PREDICTION, bool)
    require(number and 0 < work.PREDICTION < math.inf, "PREDICTION", "a number of tokens per second",
            repr(work.PREDICTION), "write down a guess first; it is kept, and then the speed is measured" * (work.PREDICTION is None))  # fmt: skip
    prediction = lock("1.4", float(work.PREDICTION))
    if prediction != work.PREDICTION:
        print(f"your first prediction, {prediction:g}, is the one that counts")
    stage = STAGES[2]
    llm = stage.traced("gpt2", load_format="dummy")
    llm.generate([[1] * 8], stage.SamplingParams(max_tokens=10, ignore_eos=True))
    measured = 1 / min(step.seconds for step in llm.trace[1:])
    numbers = torch.ones(1 << 26)  # 256 MB
    started = time.perf_counter()
    for _ in range(3):
        numbers.sum()
    bandwidth = 3 * numbers.nbytes / (time.perf_counter() - started)
    ceiling = work.tokens_per_second(SMALL, 12, 4, 1, bandwidth, 1e15)
    print(f"predicted {prediction:.0f}, measured {measured:.0f} tokens per second; the memory ({bandwidth / 1e9:.0f} GB/s) "
          f"allows {float(ceiling):.0f}")  # fmt: skip
