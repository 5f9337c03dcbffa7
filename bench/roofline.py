"""What this machine can do, and what that means for decoding: the roofline of a model (Williams et al. 2009).

    python -m bench.roofline                                       # gpt2's sizes with random weights
    python -m bench.roofline --model tinytales --dtype bfloat16

Two numbers limit an engine: how many bytes come from memory per second, and how many floating point operations the
cores do per second. A decode step reads every weight once, whatever the batch size, and each row's keys and values; it
does two operations per weight and row. So a step takes at least

    max(bytes / bandwidth, operations / rate)

and a larger batch is free until the second term exceeds the first. The tool measures both numbers with torch, and
prints the limit for batches of 1 to 64, next to what stage 3 reaches: the median of its decode steps. With several
rounds (`--repeat`) that is the median round, and in parentheses the slowest and the fastest.
"""

import argparse
import functools
import statistics

import stagewise
from bench.machine import describe, least_seconds, matmul_rate, pass_work, read_bandwidth
from bench.run import in_turn
from stage03_kvcache import LLM, SamplingParams

BATCHES = (1, 2, 4, 8, 16, 32, 64)


def decode_step(llm: LLM, batch: int, prompt_len: int, output_len: int) -> float:
    """The median seconds of stage 3's decode steps with a full batch."""
    prompts = [[1 + i] * prompt_len for i in range(batch)]
    with stagewise.trace(llm) as trace:
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True))
    return statistics.median(step.seconds for step in trace.records if step.rows[0].phase == "decode")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--prompt-len", type=int, default=64, metavar="N", help="tokens in the cache before the decodes"
    )
    parser.add_argument("--output-len", type=int, default=16, metavar="N", help="decode steps to take the median of")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="rounds, in turn; default: %(default)s")
    args = parser.parse_args(argv)
    llm = LLM(args.model, dtype=args.dtype, device=args.device, load_format="dummy", max_num_seqs=64)
    config, runner = llm.engine.model_config, llm.engine.runner
    itemsize, model = runner.dtype.itemsize, runner.model
    parameters = sum(p.numel() for p in model.parameters()) - model.wpe.weight.numel()  # few positions are read
    bandwidth, rate = read_bandwidth(runner.device), matmul_rate(runner.dtype, runner.device)
    machine = describe(runner.device)
    context = args.prompt_len + args.output_len // 2
    print(f"machine: {machine['device']}, {machine['threads']} threads; torch {machine['torch']}")
    print(f"reads {bandwidth / 1e9:.1f} GB/s; {runner.dtype} products {rate / 1e9:.0f} GFLOP/s", end="; ")
    print(f"balance {rate / bandwidth:.1f} FLOP per byte")
    print(f"{args.model}: {parameters / 1e6:.1f} million weights in {parameters * itemsize / 1e6:.0f} MB", end="; ")
    print(f"KV cache {runner.bytes_per_token:,} bytes per token; context {context} tokens\n")
    steps = {b: functools.partial(decode_step, llm, b, args.prompt_len, args.output_len) for b in BATCHES}
    print("batch  FLOP/byte  limited by   limit tok/s  of the limit  stage 3 tok/s")
    for batch, seconds in in_turn(steps, args.repeat, warm_up=False).items():
        lengths = dict(attended=batch * context, cached=batch * context)
        operations, moved = work = pass_work(config, itemsize, tokens=batch, logits=batch, **lengths)
        limit = least_seconds(work, bandwidth, rate)
        bound = "memory" if moved / bandwidth > operations / rate else "arithmetic"
        slow, reached, fast = (batch / own for own in (max(seconds), statistics.median(seconds), min(seconds)))
        print(f"{batch:5}  {operations / moved:9.1f}  {bound:<10}  {batch / limit:12.0f}", end="  ")
        print(f"{reached * limit / batch:12.0%}  {reached:5.0f} ({slow:.0f} to {fast:.0f})")


if __name__ == "__main__":
    main()
