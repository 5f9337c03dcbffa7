"""Wrong answers to exercise 6.3: (what is wrong, in the solution, instead, words of the message)."""

ROWS = "for (int64_t t = 0; t < n; t += GROUP)"
PANELS = "for (int64_t o = 0; o < out; o += PANEL)\n        "
CALL = "group_of(x + t * in, panels + o * in, in, sums, count);"
BY_ROW = "for (int64_t k = 0; k < count; k++) group_of(x + (t + k) * in, panels + o * in, in, sums + k, 1);"
MUTANTS = [
    ("row by row", CALL, BY_ROW, "a group shares one read"),
    ("the rest row by row", CALL, f"if (count == GROUP) {CALL} else {BY_ROW}", "leftover rows share one read too"),
    ("groups outside panels", PANELS + ROWS, ROWS + PANELS, "before you begin the next panel"),
    ("whole groups only", "n - t < GROUP ? n - t : GROUP", "GROUP", "grouped reads x["),
    ("the rest is left out", "t < n; t += GROUP", "t + GROUP <= n; t += GROUP", "a row for each row of x"),
    ("columns that don't exist", "c < PANEL && o + c < out", "c < PANEL", "grouped writes y["),
    ("columns by rows", "y[(t + k) * out + o + c]", "y[(o + c) * n + t + k]", "`y` is [n][out]"),
    ("adds", "+ o + c] = sums", "+ o + c] += sums", "nan"),
    ("the last input first", "for (int64_t i = 0; i < in; i++)", "for (int64_t i = in - 1; i >= 0; i--)", "adds the inputs in order"),
    ("two roundings in the rest", "sum[t][v] += x[t * in + i] * weights;",
     "if (count < GROUP) { volatile vec exact = x[t * in + i] * weights; sum[t][v] += exact; } else sum[t][v] += x[t * in + i] * weights;",
     "the same rounding"),
    ("double sums for a row alone", CALL, CALL + """
            if (n == 1)
                for (int c = 0; c < PANEL; c++) {
                    double sum = 0;
                    for (int64_t i = 0; i < in; i++) sum += (double)x[i] * panels[(o / PANEL * in + i) * PANEL + c];
                    sums[0][c] = (float)sum;
                }""", "for that row alone"),
    ("a copy of the panel on the stack", CALL, "float copy[PANEL * in];\n            for (int64_t i = 0; i < PANEL * in; i++) copy[i] = panels[o * in + i];\n"
     "            for (int64_t k = 0; k < count; k++) group_of(x + (t + k) * in, copy, in, sums + k, 1);", "a copy or an intermediate result"),
    ("a copy of the panel", ("#include \"linear.h\"", CALL), ("#include <stdlib.h>\n#include \"linear.h\"",
     "float *copy = malloc((size_t)(PANEL * in) * 4);\n            for (int64_t i = 0; i < PANEL * in; i++) copy[i] = panels[o * in + i];\n"
     "            for (int64_t k = 0; k < count; k++) group_of(x + (t + k) * in, copy, in, sums + k, 1);\n            free(copy);"), "no memory except the stack"),
]  # fmt: skip

ALSO_RIGHT = [
    ("the smallest counts by a loop over weights", CALL,
     "if (count > 2) " + CALL + "\n            else for (int64_t k = 0; k < count; k++)\n                for (int c = 0; c < PANEL; c++) sums[k][c] = 0;\n"
     "            if (count <= 2)\n                for (int64_t i = 0; i < in; i++)\n                    for (int64_t k = 0; k < count; k++)\n"
     "                        for (int c = 0; c < PANEL; c += LANES) *(vec *)(sums[k] + c) += x[(t + k) * in + i] * *(const vec *)(panels + o * in + i * PANEL + c);"),
]  # fmt: skip
