"""Wrong answers to exercise 6.5: (what is wrong, in the solution, instead, the message)."""

ADD = "__atomic_fetch_add(&counters[v].taken, 1, __ATOMIC_RELAXED)"
SHARE = "const int64_t first = num_panels * v / size, end = num_panels * (v + 1) / size;"
LOOP = "for (int64_t panel; (panel = take(counters, rank, size, num_panels)) >= 0;) one_panel(layer, panel);"
MUTANTS = [
    ("two steps", ADD, "counters[v].taken++", "another thread got in between"),
    ("an atomic reading and an atomic writing", f"const int64_t panel = first + {ADD};",
     "const int64_t old = __atomic_load_n(&counters[v].taken, __ATOMIC_RELAXED), panel = first + old;\n"
     "        __atomic_store_n(&counters[v].taken, old + 1, __ATOMIC_RELAXED);", "another thread got in between"),
    ("looks first", f"const int64_t panel = first + {ADD};",
     f"if (first + counters[v].taken >= end) continue;\n        const int64_t panel = first + {ADD};\n        return panel;", "expected:"),
    ("raised before", ADD, "__atomic_add_fetch(&counters[v].taken, 1, __ATOMIC_RELAXED)", "expected:"),
    ("fixed shares", "further < size; further++", "further < 1; further++", "a thread helps the others"),
    ("helps the one before", "(rank + further) % size", "(rank + size - further) % size", "helps `rank + 1`"),
    ("one counter for all", f"    for (int64_t further = 0; further < size; further++) {{\n        const int64_t v = (rank + further) % size;\n        {SHARE}\n",
     "    for (int64_t v = 0; v < 1; v++) {\n        const int64_t first = 0, end = num_panels;\n", "its own share first"),
    ("equal shares", SHARE, "const int64_t each = (num_panels + size - 1) / size, first = v * each, end = first + each < num_panels ? first + each : num_panels;",
     "begins at num_panels * v / size"),
    ("the rest for the last", SHARE, "const int64_t first = num_panels / size * v, end = v + 1 < size ? num_panels / size * (v + 1) : num_panels;", "expected:"),
    ("does not come around", "(rank + further) % size", "rank + further < size ? rank + further : size - 1", "expected:"),
    ("from the first thread on", "(rank + further) % size", "further", "expected:"),
    ("one too many", "if (panel < end)", "if (panel <= end)", "expected:"),
    ("the last one is left", "if (panel < end)", "if (panel + 1 < end)", "expected:"),
    ("shares of 32 bits", SHARE, "const int64_t first = (int)num_panels * (int)v / (int)size, end = (int)num_panels * (int)(v + 1) / (int)size;", "two panels left in each share"),
    ("a counter of 16 bits", ADD, "(__atomic_fetch_add(&counters[v].taken, 1, __ATOMIC_RELAXED) & 65535)", "expected:"),
    ("a separate counter", ("#include \"linear.h\"", ADD), ("#include \"linear.h\"\n\nstatic int64_t own[4096];", "__atomic_fetch_add(&own[v], 1, __ATOMIC_RELAXED)"), "expected:"),
    ("panels from the end", "return panel;", "return first + end - 1 - panel;", "expected:"),
    ("whole panels only", "(layer->out + PANEL - 1) / PANEL", "layer->out / PANEL", "a partly filled panel counts"),
    ("one panel too many", "(layer->out + PANEL - 1) / PANEL", "layer->out / PANEL + 1", "there is no such panel"),
    ("one panel for each thread", LOOP, "const int64_t panel = take(counters, rank, size, num_panels);\n    if (panel >= 0) one_panel(layer, panel);", "panels that no thread computes"),
    ("stops at panel 0", "num_panels)) >= 0;)", "num_panels)) > 0;)", "panels that no thread computes"),
    ("each its own", LOOP, "for (int64_t panel = num_panels * rank / size; panel < num_panels * (rank + 1) / size; panel++) one_panel(layer, panel);", "the threads that are there must compute everything"),
    ("every thread all", LOOP, "for (int64_t panel = 0; panel < num_panels; panel++) one_panel(layer, panel);", "the order of the panels"),
    ("thread 0 does all", LOOP, "if (rank == 0)\n        for (int64_t panel = 0; panel < num_panels; panel++) one_panel(layer, panel);", "the threads that are there must compute everything"),
]  # fmt: skip

ALSO_RIGHT = [
    ("compares and swaps", f"        const int64_t panel = first + {ADD};\n        if (panel < end) return panel;\n",
     "        int64_t taken = __atomic_load_n(&counters[v].taken, __ATOMIC_RELAXED);\n        while (first + taken < end)\n"
     "            if (__atomic_compare_exchange_n(&counters[v].taken, &taken, taken + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return first + taken;\n"),
    ("stronger order", "__ATOMIC_RELAXED", "__ATOMIC_SEQ_CST"),
]  # fmt: skip
