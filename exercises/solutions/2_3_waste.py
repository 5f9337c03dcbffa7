"""A solution of exercise 2.3."""


def positions(
    prompts: list[int], outputs: list[int], max_num_seqs: int, sort_by_length: bool = False
) -> tuple[int, int]:
    """(places with tokens of live rows, wasted places) that stage 2 computes, from the lengths of the requests."""
    requests = list(zip(prompts, outputs, strict=True))
    if sort_by_length:
        requests.sort(key=lambda request: -request[0])
    live = total = 0
    for start in range(0, len(requests), max_num_seqs):
        batch = requests[start : start + max_num_seqs]
        for step in range(max(n for _, n in batch)):
            lengths = [p + min(step, n) for p, n in batch]
            total += len(batch) * max(lengths)
            live += sum(length for length, (_, n) in zip(lengths, batch, strict=True) if step < n)
    return live, total - live


# --- Wrong answers: (what is wrong, in the solution, instead, the message) -----------------------------------------

PASTE = "Paste this into Python"  # the message where the random comparison finds it, and nothing is certain
MUTANTS = [
    ("sorts by prompt and output", "lambda request: -request[0]", "lambda request: -sum(request)", "not known yet"),
    ("the last token is computed", "[p + min(step, n) for p, n in batch]", "[p + min(step + 1, n) for p, n in batch]", "never computed"),
    ("no rectangle", "total += len(batch) * max(lengths)", "total += sum(lengths)", "count the whole rectangle"),
    ("padding is live", "live += sum(length for length,", "live += sum(max(lengths) for length,", "padding was counted"),
    ("done rows leave", "total += len(batch) * max(lengths)",
     "total += sum(step < n for _, n in batch) * max(p + step for p, n in batch if step < n)", "until its batch ends"),
    ("done rows are live", "if step < n)", ")", "computes is wasted"),
    ("done rows are cut to live width", "total += len(batch) * max(lengths)",
     "total += len(batch) * max(p + step for p, n in batch if step < n)", "keeps its length"),
    ("one batch", "    live = total = 0\n", "    live = total = 0\n    max_num_seqs = len(requests)\n", "the next ones wait"),
    ("sorts inside the batch", "requests.sort(key=lambda request: -request[0])",
     "requests[:max_num_seqs] = sorted(requests[:max_num_seqs])", "before they are put into batches"),
    ("sorts the prompts alone", "requests.sort(key=lambda request: -request[0])",
     "requests = list(zip(sorted(prompts, reverse=True), outputs))", "sort them together"),
    ("equal prompts turned around", "requests.sort(key=lambda request: -request[0])", "requests.sort(key=lambda request: request[0])\n        requests.reverse()",
     "equal prompts stay"),
    ("longer outputs first among equals", "requests.sort(key=lambda request: -request[0])", "requests.sort(reverse=True)", "equal prompts stay"),
    ("sorts the caller's lists", "        requests.sort(key=lambda request: -request[0])\n",
     "        requests.sort(key=lambda request: -request[0])\n        prompts.sort(reverse=True)\n", "sort a copy"),
    ("all of them, and what is live", "return live, total - live", "return live, total", "not everything that was"),
    ("a step too many", "for step in range(max(n for _, n in batch)):", "for step in range(max(n for _, n in batch) + 1):", "no further step"),
    ("floats", "return live, total - live", "return float(live), float(total - live)", "it should be int"),
    ("true division", "return live, total - live", "return live, (2 * total - 2 * live) / 2", "it should be int"),
    ("off by less than a tolerance", "return live, total - live", "return live, total - live + (total > 200_000)", "expected:"),
    ("the last batch is left out", "for start in range(0, len(requests), max_num_seqs):",
     "for start in range(0, len(requests) - (len(requests) > 4), max_num_seqs):", PASTE),
]  # fmt: skip

ALSO_RIGHT = [
    ("sums by row", "            live += sum(length for length, (_, n) in zip(lengths, batch, strict=True) if step < n)\n",
     "        live += sum(n * p + n * (n - 1) // 2 for p, n in batch)\n"),
    ("sorts indices", "requests.sort(key=lambda request: -request[0])",
     "requests = [requests[i] for i in sorted(range(len(prompts)), key=lambda i: (-prompts[i], i))]"),
]  # fmt: skip
