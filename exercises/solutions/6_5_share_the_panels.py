"""Wrong answers to exercise 6.5: (what is wrong, in the solution, instead, words of the message)."""

ADD = "__atomic_fetch_add(&counters[v].taken, 1, __ATOMIC_RELAXED)"
SHARE = "const int64_t first = num_panels * v / size, end = num_panels * (v + 1) / size;"
LOOP = "for (int64_t panel; (panel = take(counters, rank, size, num_panels)) >= 0;) one_panel(layer, panel);"
MUTANTS = [
    ("two steps", ADD, "counters[v].taken++", "must be one operation"),
    ("an atomic reading and an atomic writing", f"const int64_t panel = first + {ADD};",
     "const int64_t old = __atomic_load_n(&counters[v].taken, __ATOMIC_RELAXED), panel = first + old;\n"
     "        __atomic_store_n(&counters[v].taken, old + 1, __ATOMIC_RELAXED);", "must be one operation"),
    ("looks first", f"const int64_t panel = first + {ADD};",
     f"if (first + counters[v].taken >= end) continue;\n        return first + {ADD};\n        const int64_t panel = end;", "must be one operation"),
    ("raised before", ADD, "__atomic_add_fetch(&counters[v].taken, 1, __ATOMIC_RELAXED)", "takes its own share in order"),
    ("fixed shares", "further < size; further++", "further < 1; further++", "helps the next one"),
    ("helps the one before", "(rank + further) % size", "(rank + size - further) % size", "helps the next one"),
    ("one counter for all", f"    for (int64_t further = 0; further < size; further++) {{\n        const int64_t v = (rank + further) % size;\n        {SHARE}\n",
     "    for (int64_t v = 0; v < 1; v++) {\n        const int64_t first = 0, end = num_panels;\n", "its own share first"),
    ("equal shares", SHARE, "const int64_t each = (num_panels + size - 1) / size, first = v * each, end = first + each < num_panels ? first + each : num_panels;",
     "begins at num_panels * v / size"),
    ("does not come around", "(rank + further) % size", "rank + further < size ? rank + further : size - 1", "after the last thread comes thread 0"),
    ("one too many", "if (panel < end)", "if (panel <= end)", "-1, as often as it asks"),
    ("panels from the end", "return panel;", "return first + end - 1 - panel;", "takes its own share in order"),
    ("whole panels only", "(layer->out + PANEL - 1) / PANEL", "layer->out / PANEL", "a partly filled panel counts"),
    ("one panel for each thread", LOOP, "const int64_t panel = take(counters, rank, size, num_panels);\n    if (panel >= 0) one_panel(layer, panel);", "the calls of one_panel"),
    ("stops at panel 0", "num_panels)) >= 0;)", "num_panels)) > 0;)", "the calls of one_panel"),
    ("each its own", LOOP, "for (int64_t panel = num_panels * rank / size; panel < num_panels * (rank + 1) / size; panel++) one_panel(layer, panel);", "it waits for no other thread"),
    ("waits for the next thread", LOOP, "while (rank > 0 && !__atomic_load_n(&counters[rank - 1].taken, __ATOMIC_RELAXED)) {}\n    " + LOOP, "a loop that does not end"),
]  # fmt: skip

ALSO_RIGHT = [
    ("compares and swaps", f"        const int64_t panel = first + {ADD};\n        if (panel < end) return panel;\n",
     "        int64_t taken = __atomic_load_n(&counters[v].taken, __ATOMIC_RELAXED);\n        while (first + taken < end)\n"
     "            if (__atomic_compare_exchange_n(&counters[v].taken, &taken, taken + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return first + taken;\n"),
    ("stronger order", "__ATOMIC_RELAXED", "__ATOMIC_SEQ_CST"),
]  # fmt: skip
