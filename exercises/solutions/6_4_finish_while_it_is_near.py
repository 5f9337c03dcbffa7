"""Wrong answers to exercise 6.4: (what is wrong, in the solution, instead, words of the message)."""

VALUE = "const float value = sums[k][c] + bias[o + c];"
FINISH = "*to = finish == GELU ? gelu(value) : finish == ADD ? *to + value : value;"
END = "                }\n        }\n}\n"
PANELS = "for (int64_t o = 0; o < out; o += PANEL)"
ROWS = "for (int64_t t = 0; t < n; t += GROUP)"
MUTANTS = [
    ("one bias for all", "bias[o + c]", "bias[0]", "STORE: y becomes v"),
    ("the bias by the panel", "bias[o + c]", "bias[c]", "65 columns"),
    ("the bias afterwards", (VALUE, "gelu(value)"), ("const float value = sums[k][c] + (finish == GELU ? 0 : bias[o + c]);", "gelu(value) + bias[o + c]"), "GELU: y becomes GELU of v"),
    ("no residual", "finish == ADD ? *to + value : value", "value", "ADD: y becomes y + v"),
    ("GELU with erf", "return 0.5f * v * (1 + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));", "return 0.5f * v * (1 + erff(v * 0.70710678f));", "GELU: y becomes GELU of v"),
    ("columns that don't exist", "out - o < PANEL ? out - o : PANEL", "PANEL", "fused reads bias[3], and bias has 3 numbers"),
    ("rows that don't exist", "n - t < GROUP ? n - t : GROUP", "GROUP", "fused reads x[4], and x has 4 numbers"),
    ("a pass for GELU at the end", (FINISH, END), ("*to = finish == ADD ? *to + value : value;",
     END[:-2] + "    if (finish == GELU)\n        for (int64_t i = 0; i < n * out; i++) y[i] = gelu(y[i]);\n}\n"), "before the next group begins"),
    ("the bias beforehand", ("    " + PANELS, VALUE, FINISH), ("    for (int64_t i = 0; i < n * out; i++) y[i] = bias[i % out] + (finish == ADD ? y[i] : 0);\n    " + PANELS,
     "const float value = sums[k][c] + *to;", "*to = finish == GELU ? gelu(value) : value;"), "before the next group begins"),
    ("an intermediate tensor", ("#include <math.h>", "    " + PANELS, FINISH, END),
     ("#include <math.h>\n#include <stdlib.h>", "    float *product = malloc(sizeof(float) * (size_t)(n * out));\n    " + PANELS, "product[to - y] = value;",
      END[:-2] + "    for (int64_t i = 0; i < n * out; i++) y[i] = finish == GELU ? gelu(product[i]) : finish == ADD ? y[i] + product[i] : product[i];\n    free(product);\n}\n"),
     "no intermediate tensor"),
    ("an intermediate tensor on the stack", ("    " + PANELS, FINISH, END),
     ("    float product[n * out + 1];\n    " + PANELS, "product[to - y] = value;",
      END[:-2] + "    for (int64_t i = 0; i < n * out; i++) y[i] = finish == GELU ? gelu(product[i]) : finish == ADD ? y[i] + product[i] : product[i];\n}\n"),
     "an intermediate result"),
    ("groups outside panels", f"{PANELS}\n        {ROWS}", f"{ROWS}\n        {PANELS}", "within each panel group after group"),
    ("rows that are left over one by one", (ROWS, "n - t < GROUP ? n - t : GROUP"), (ROWS.replace("t += GROUP", "t += n - t < GROUP ? 1 : GROUP"), "n - t < GROUP ? 1 : GROUP"), "share one read of a panel"),
    ("other bits in the rest", VALUE, VALUE.replace("sums[k][c]", "(count < GROUP ? nextafterf(sums[k][c], 0) : sums[k][c])"), "expected"),
]  # fmt: skip

ALSO_RIGHT = [
    ("a pass within the group", FINISH, "*to = finish == ADD ? *to + value : value;\n                }\n            if (finish == GELU)\n"
     "            for (int64_t k = 0; k < count; k++)\n                for (int64_t c = 0; c < columns; c++) {\n"
     "                    float *to = y + (t + k) * out + o + c;\n                    *to = gelu(*to);"),
    ("GELU by exp", "return 0.5f * v * (1 + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));",
     "return v / (1 + expf(-2 * 0.7978845608f * (v + 0.044715f * v * v * v)));"),
]  # fmt: skip
