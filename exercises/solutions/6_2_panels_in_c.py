"""Wrong answers to exercise 6.2: (what is wrong, in the solution, instead, the message)."""

ELEMENT = "*panels++ = o < out && i < in ? weight[o * in + i] : 0;"
SUMS = "sum[c] += x[i] * panel[i * PANEL + c];"
PANELS = "for (int64_t first = 0; first < out; first += width)\n        "
STEPS = "for (int64_t step = 0; step < in; step += inner)\n            "
COLUMNS = "for (int64_t o = first; o < first + width; o++)\n                "
INPUTS = "for (int64_t i = step; i < step + inner; i++)\n                    "
MUTANTS = [
    ("whole panels only", "whole(out, width) * whole", "out / width * whole", "a partly filled panel counts"),
    ("whole steps only", "* whole(in, inner) *", "* (in / inner) *", "a partly filled step counts"),
    ("no room for columns", "whole(out, width) * whole(in, inner) * width * inner", "out * whole(in, inner) * inner", "take room too"),
    ("no room for inputs", "whole(in, inner) * width * inner;", "in * width;", "inputs that don't exist take room too"),
    ("a size of 32 bits", "return whole(out, width) *", "return (int)", "expected:"),
    ("zeros are left out", ELEMENT, "{ if (o < out && i < in) *panels = weight[o * in + i]; panels++; }", "write the padding too"),
    ("nothing where nothing is", ELEMENT, "if (o < out && i < in) *panels++ = weight[o * in + i];", "were not written"),
    ("reads what does not exist", "o < out && i < in ? weight", "1 ? weight", "pack reads or writes weight[15]; weight has 15 numbers"),
    ("reads the next row", "o < out && i < in ? weight", "o * in + i < out * in ? weight", "expected:"),
    ("inputs outside columns", COLUMNS + INPUTS, INPUTS + COLUMNS, "column by column"),
    ("steps outside panels", PANELS + STEPS, STEPS + PANELS, "panel after panel"),
    ("columns stay runs", STEPS + COLUMNS, COLUMNS + STEPS, "first step 0 of all its columns"),
    ("whole numbers", "? weight[o * in + i] : 0", "? (int)weight[o * in + i] : 0", "expected:  [0.5]"),
    ("clears the matrix", ELEMENT, ELEMENT + "\n    ((float *)weight)[0] = 0;", "which it must not change"),
    ("one number too many", ELEMENT, ELEMENT + "\n    *panels = 0;", "pack reads or writes panels[24]; panels has 24 numbers"),
    ("one before", "for (int64_t first = 0; first < out", "panels[-1] = 0;\n    for (int64_t first = 0; first < out", "panels[-1]"),
    ("columns of 16 bits", "for (int64_t first = 0; first < out; first += width)", "for (int64_t first = 0; first < out && first < 65536; first += width)", "70001 columns"),
    ("stores all columns", "c < PANEL && o + c < out", "c < PANEL", "multiply reads or writes y[3]; y has 3 numbers"),
    ("zeros are left out", SUMS, "if (x[i] != 0) " + SUMS, "even one that is 0"),
    ("adds to y", "y[o + c] = sum[c]", "y[o + c] += sum[c]", "its old value is not part of the sum"),
    ("the last input first", "for (int64_t i = 0; i < in; i++)\n            for (int c", "for (int64_t i = in - 1; i >= 0; i--)\n            for (int c", "add the first input first"),
    ("two sums", ("float sum[PANEL] = {0};", SUMS, "y[o + c] = sum[c]"), ("float sum[PANEL] = {0}, odd[PANEL] = {0};", "if (i % 2) odd[c] += x[i] * panel[i * PANEL + c]; else " + SUMS, "y[o + c] = sum[c] + odd[c]"), "adds one input after another"),
    ("column by column", "for (int64_t i = 0; i < in; i++)\n            for (int c = 0; c < PANEL; c++) sum",
     "for (int c = 0; c < PANEL; c++)\n            for (int64_t i = 0; i < in; i++) sum", "a page is fetched again"),
    ("panels from the last", "for (int64_t o = 0; o < out; o += PANEL) {", "for (int64_t o = (out - 1) / PANEL * PANEL; o >= 0; o -= PANEL) {", "in the order in which they are fetched"),
    ("double sums", "float sum[PANEL]", "double sum[PANEL]", "in float32"),
    ("leaves a rest out", "o < out; o += PANEL", "o + PANEL <= out || o == 0; o += PANEL", "expected:"),
    ("a pointer to nothing", "const float *panel = panels + o * in;", "const float *panel = 0;", "a stray pointer"),
    ("no semicolon", "float sum[PANEL] = {0};", "float sum[PANEL] = {0}", "CompileError at line"),
    ("no function", "int64_t packed_size(", "int64_t packed_sizes(", "there is no function packed_size"),
    ("a division by zero", "return (n + size - 1) / size;", "return (n + size - 1) / (size - 2);", "a division by zero"),
    ("an endless loop", "first += width)", "first += 0)", "reads or writes panels["),
    ("an intermediate copy", "float sum[PANEL] = {0};", "float sum[PANEL] = {0}, copy[65536];\n        for (int k = 0; k < 65536; k++) ((volatile float *)copy)[k] = 0;", "64 KB of stack"),
    ("memory from malloc", ("#include \"linear.h\"", "float sum[PANEL] = {0};"),
     ("#include <stdlib.h>\n#include \"linear.h\"", "float *sum = calloc(PANEL, sizeof *sum);"), "no memory from malloc"),
]  # fmt: skip

ALSO_RIGHT = [
    ("by place", "                    " + ELEMENT, "                    panels[((o / width * whole(in, inner) + i / inner) * width + o % width) * inner + i % inner] =\n"
     "                        o < out && i < in ? weight[o * in + i] : 0;"),
    ("vectors", "            for (int c = 0; c < PANEL; c++) " + SUMS,
     "            for (int c = 0; c < PANEL; c += LANES) *(vec *)(sum + c) += x[i] * *(const vec *)(panel + i * PANEL + c);"),
]  # fmt: skip
