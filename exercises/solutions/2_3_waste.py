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


# --- Wrong answers: (what is wrong, in the solution, instead, words of the message) --------------------------------

SORT = "requests.sort(key=lambda request: -request[0])"
MUTANTS = [
    ("the last token is computed", "[p + min(step, n) for p, n in batch]", "[p + min(step + 1, n) for p, n in batch]",
     "the last token is not computed"),
    ("all of them, and what is live", "return live, total - live", "return live, total", "each step computes the whole sequence"),
    ("no rectangle", "total += len(batch) * max(lengths)", "total += sum(lengths)", "the padding of a live row"),
    ("padding is live", "live += sum(length for length,", "live += sum(max(lengths) for length,", "the padding of a live row"),
    ("done rows leave", "total += len(batch) * max(lengths)",
     "total += sum(step < n for _, n in batch) * max(p + step for p, n in batch if step < n)", "until its batch ends"),
    ("done rows are live", "if step < n)", ")", "a row that is done is wasted"),
    ("done rows are cut to live width", "total += len(batch) * max(lengths)",
     "total += len(batch) * max(p + step for p, n in batch if step < n)", "keeps its length"),
    ("one batch", "    live = total = 0\n", "    live = total = 0\n    max_num_seqs = len(requests)\n", "max_num_seqs requests form a batch"),
    ("the last batch is left out", "for start in range(0, len(requests), max_num_seqs):",
     "for start in range(0, len(requests) - (len(requests) > 2), max_num_seqs):", "max_num_seqs requests form a batch"),
    ("sorts inside the batch", SORT, "requests[:max_num_seqs] = sorted(requests[:max_num_seqs])", "before they form batches"),
    ("sorts by prompt and output", "lambda request: -request[0]", "lambda request: -sum(request)", "not known yet"),
    ("sorts the prompts alone", SORT, "requests = list(zip(sorted(prompts, reverse=True), outputs))", "together with their prompts"),
    ("longer outputs first among equals", SORT, "requests.sort(reverse=True)", "equal prompts stay"),
    ("sorts the caller's lists", f"        {SORT}\n", f"        {SORT}\n        prompts.sort(reverse=True)\n", "were changed"),
]  # fmt: skip

ALSO_RIGHT = [
    ("sums by row", "            live += sum(length for length, (_, n) in zip(lengths, batch, strict=True) if step < n)\n",
     "        live += sum(n * p + n * (n - 1) // 2 for p, n in batch)\n"),
    ("sorts indices", "requests.sort(key=lambda request: -request[0])",
     "requests = [requests[i] for i in sorted(range(len(prompts)), key=lambda i: (-prompts[i], i))]"),
]  # fmt: skip
