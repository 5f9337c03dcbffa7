"""Two policies, step by step: one request asks for four completions, and another comes two steps later.

python examples/fairness.py
"""

import stagewise
from stage05_paged import LLM, SamplingParams


def run(policy: str) -> str:
    """A column for each step: which completions it computes, and how many tokens of each."""
    llm = LLM(policy=policy, max_num_seqs=2, block_size=4)
    a = llm.inputs.request("There was once a shy bear", SamplingParams(n=4, max_tokens=4, ignore_eos=True))
    b = llm.inputs.request("One day", SamplingParams(max_tokens=2, ignore_eos=True))
    name = {a.request_id: "A", b.request_id: "B"}

    with stagewise.trace(llm) as trace:

        def all_steps() -> None:
            llm.engine.add(a)
            while not (a.group_finished and b.group_finished):
                if len(trace.records) == 2:
                    llm.engine.add(b)
                llm.engine.step()

        llm.loop.call(all_steps)  # in the engine's thread
    steps = [[f"{name[row.request_id]}{row.index + 1}:{row.num_tokens}" for row in step.rows] for step in trace.records]
    return " | ".join([policy, *(" ".join(rows).ljust(9) for rows in steps)]).rstrip()


if __name__ == "__main__":
    for policy in "fcfs", "fair":
        print(run(policy))
