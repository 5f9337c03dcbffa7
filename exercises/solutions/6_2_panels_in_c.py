"""Wrong answers to exercise 6.2: (what is wrong, in the solution, instead, words of the message)."""

ELEMENT = "*panels++ = o < out && i < in ? weight[o * in + i] : 0;"
SUMS = "sum[c] += x[i] * panel[i * PANEL + c];"
STEPS = "for (int64_t step = 0; step < in; step += inner)\n            "
COLUMNS = "for (int64_t o = first; o < first + width; o++)\n                "
INPUTS = "for (int64_t i = step; i < step + inner; i++)\n                    "
MUTANTS = [
    ("whole panels only", "whole(out, width) * whole", "out / width * whole", "a partly filled panel"),
    ("no room for inputs", "whole(in, inner) * width * inner;", "in * width;", "a partly filled step"),
    ("a size of 32 bits", "return whole(out, width) * whole(in, inner) * width * inner", "return (int)(whole(out, width) * whole(in, inner) * width * inner)", "must not overflow"),
    ("zeros are left out", ELEMENT, "{ if (o < out && i < in) *panels = weight[o * in + i]; panels++; }", "columns that don't exist are 0"),
    ("reads what does not exist", "o < out && i < in ? weight", "1 ? weight", "pack reads weight[10], and weight has 10 numbers"),
    ("reads the next row", "o < out && i < in ? weight", "o * in + i < out * in ? weight", "inputs that don't exist are 0"),
    ("inputs outside columns", COLUMNS + INPUTS, INPUTS + COLUMNS, "inputs of a column are side by side"),
    ("columns stay runs", STEPS + COLUMNS, COLUMNS + STEPS, "within a panel, step after step"),
    ("stores all columns", "c < PANEL && o + c < out", "c < PANEL", "multiply writes y[3], and y has 3 numbers"),
    ("adds to y", "y[o + c] = sum[c]", "y[o + c] += sum[c]", "y is overwritten"),
    ("the last input first", "for (int64_t i = 0; i < in; i++)\n            for (int c", "for (int64_t i = in - 1; i >= 0; i--)\n            for (int c", "adds the inputs in order"),
    ("double sums", "float sum[PANEL]", "double sum[PANEL]", "in float32"),
    ("column by column", "for (int64_t i = 0; i < in; i++)\n            for (int c = 0; c < PANEL; c++) sum",
     "for (int c = 0; c < PANEL; c++)\n            for (int64_t i = 0; i < in; i++) sum", "a page of the panels is fetched again"),
    ("panels from the last", "for (int64_t o = 0; o < out; o += PANEL) {", "for (int64_t o = (out - 1) / PANEL * PANEL; o >= 0; o -= PANEL) {", "from the first to the last"),
    ("no semicolon", "float sum[PANEL] = {0};", "float sum[PANEL] = {0}", "6_2_panels_in_c.c, line 25"),
]  # fmt: skip

ALSO_RIGHT = [
    ("by place", "                    " + ELEMENT, "                    panels[((o / width * whole(in, inner) + i / inner) * width + o % width) * inner + i % inner] =\n"
     "                        o < out && i < in ? weight[o * in + i] : 0;"),
    ("vectors", "            for (int c = 0; c < PANEL; c++) " + SUMS,
     "            for (int c = 0; c < PANEL; c += LANES) *(vec *)(sum + c) += x[i] * *(const vec *)(panel + i * PANEL + c);"),
]  # fmt: skip
