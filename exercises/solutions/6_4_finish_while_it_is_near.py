"""Wrong answers to exercise 6.4: (what is wrong, in the solution, instead, the message)."""

VALUE = "const float value = sums[k][c] + bias[o + c];"
FINISH = "*to = finish == GELU ? gelu(value) : finish == ADD ? *to + value : value;"
END = "                }\n        }\n}\n"
PANELS = "for (int64_t o = 0; o < out; o += PANEL)"
ROWS = "for (int64_t t = 0; t < n; t += GROUP)"
MUTANTS = [
    ("no bias", VALUE, "const float value = sums[k][c];", "expected:"),
    ("one bias for all", "bias[o + c]", "bias[0]", "its own bias"),
    ("the bias by the panel", "bias[o + c]", "bias[c]", "expected:"),
    ("the bias afterwards", (VALUE, "gelu(value)"), ("const float value = sums[k][c] + (finish == GELU ? 0 : bias[o + c]);", "gelu(value) + bias[o + c]"), "expected:"),
    ("a bias for columns that don't exist", ("out - o < PANEL ? out - o : PANEL", "bias[o + c]", FINISH), ("PANEL", "((const volatile float *)bias)[o + c]", f"if (o + c < out) {FINISH}"), "bias[3]"),
    ("the residual twice", "? *to + value :", "? 2 * *to + value :", "expected:"),
    ("no residual", "finish == ADD ? *to + value : value", "value", "GELU or the residual addition is missing"),
    ("always adds", "finish == ADD ? *to + value : value", "*to + value", "STORE"),
    ("no GELU", "finish == GELU ? gelu(value) : ", "", "GELU or the residual addition is missing"),
    ("GELU with erf", "return 0.5f * v * (1 + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));", "return 0.5f * v * (1 + erff(v * 0.70710678f));", "this is GELU with erf"),
    ("GELU without the cube", "v + 0.044715f * v * v * v", "v", "expected:"),
    ("GELU by exp", "tanhf(0.7978845608f * (v + 0.044715f * v * v * v))", "(1 - 2 / (1 + expf(2 * 0.7978845608f * (v + 0.044715f * v * v * v)))) * 1.00001f", "expected:"),
    ("GELU cut above", "return 0.5f * v", "if (v > 6) return 6;\n    return 0.5f * v", "expected:"),
    ("GELU of large numbers", "tanhf(0.7978845608f * (v + 0.044715f * v * v * v))", "(expf(2 * 0.7978845608f * (v + 0.044715f * v * v * v)) - 1) / (expf(2 * 0.7978845608f * (v + 0.044715f * v * v * v)) + 1)", "NaN"),
    ("columns that don't exist", "out - o < PANEL ? out - o : PANEL", "PANEL", "fused reads or writes"),
    ("rows that don't exist", "n - t < GROUP ? n - t : GROUP", "GROUP", "fused reads or writes x["),
    ("a pass for GELU at the end", (FINISH, END), ("*to = finish == ADD ? *to + value : value;",
     END[:-2] + "    if (finish == GELU)\n        for (int64_t i = 0; i < n * out; i++) y[i] = gelu(y[i]);\n}\n"), "KB of y come back"),
    ("a pass for the bias at the end", (VALUE, FINISH, END), ("const float value = sums[k][c];", "*to = finish == ADD ? *to + value : value;",
     END[:-2] + "    for (int64_t i = 0; i < n * out; i++) y[i] = finish == GELU ? gelu(y[i] + bias[i % out]) : y[i] + bias[i % out];\n}\n"), "KB of y come back"),
    ("the bias beforehand", ("    " + PANELS, VALUE, FINISH), ("    for (int64_t i = 0; i < n * out; i++) y[i] = bias[i % out] + (finish == ADD ? y[i] : 0);\n    " + PANELS,
     "const float value = sums[k][c] + *to;", "*to = finish == GELU ? gelu(value) : value;"), "KB of y come back"),
    ("a pass for each panel", (FINISH, END), ("*to = finish == ADD ? *to + value : value;",
     "                }\n            if (finish == GELU && t + GROUP >= n)\n                for (int64_t i = 0; i < n; i++)\n"
     "                    for (int64_t c = 0; c < columns; c++) y[i * out + o + c] = gelu(y[i * out + o + c]);\n        }\n}\n"), "KB of y come back"),
    ("an intermediate tensor", ("#include <math.h>", "    " + PANELS, FINISH, END),
     ("#include <math.h>\n#include <stdlib.h>", "    float *product = malloc(sizeof(float) * (size_t)(n * out));\n    " + PANELS, "product[to - y] = value;",
      END[:-2] + "    for (int64_t i = 0; i < n * out; i++) y[i] = finish == GELU ? gelu(product[i]) : finish == ADD ? y[i] + product[i] : product[i];\n    free(product);\n}\n"),
     "no intermediate tensor"),
    ("an intermediate tensor on the stack", ("    " + PANELS, FINISH, END),
     ("    float product[n * out + 1];\n    " + PANELS, "product[to - y] = value;",
      END[:-2] + "    for (int64_t i = 0; i < n * out; i++) y[i] = finish == GELU ? gelu(product[i]) : finish == ADD ? y[i] + product[i] : product[i];\n}\n"),
     "64 KB of stack"),
    ("an intermediate tensor that is static", ("    " + PANELS, FINISH, END),
     ("    static float product[1 << 22];\n    " + PANELS, "product[to - y] = value;",
      END[:-2] + "    for (int64_t i = 0; i < n * out; i++) y[i] = finish == GELU ? gelu(product[i]) : finish == ADD ? y[i] + product[i] : product[i];\n}\n"),
     "no intermediate tensor"),
    ("an intermediate tensor by mmap", ("#include <math.h>", "    " + PANELS, FINISH, END),
     ("#include <math.h>\n#include <sys/mman.h>", "    const size_t size = sizeof(float) * (size_t)(n * out + 1);\n"
      "    float *product = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n    " + PANELS, "product[to - y] = value;",
      END[:-2] + "    for (int64_t i = 0; i < n * out; i++) y[i] = finish == GELU ? gelu(product[i]) : finish == ADD ? y[i] + product[i] : product[i];\n    munmap(product, size);\n}\n"),
     "no intermediate tensor"),
    ("groups outside panels", f"{PANELS}\n        {ROWS}", f"{ROWS}\n        {PANELS}", "before you begin the next panel"),
    ("one row at a time", (ROWS, "n - t < GROUP ? n - t : GROUP"), (ROWS.replace("t += GROUP", "t++"), "1"), "which share one read of the panel"),
    ("rows that are left over one by one", (ROWS, "n - t < GROUP ? n - t : GROUP"), (ROWS.replace("t += GROUP", "t += n - t < GROUP ? 1 : GROUP"), "n - t < GROUP ? 1 : GROUP"), "which share one read of the panel"),
    ("other bits in the rest", VALUE, "const float value = count < GROUP ? (float)((double)sums[k][c] * (1 + 1e-7)) + bias[o + c] : sums[k][c] + bias[o + c];", "expected:"),
    ("columns of 16 bits", PANELS, "for (int64_t o = 0; o < out && o < 65536; o += PANEL)", "70001 columns"),
    ("rows of 16 bits", ROWS, "for (int64_t t = 0; t < n && t < 65536; t += GROUP)", "70001 rows"),
    ("changes the bias", VALUE, VALUE + "\n                    ((float *)bias)[o + c] = 0;", "which it must not change"),
]  # fmt: skip

ALSO_RIGHT = [
    ("a pass within the group", FINISH, "*to = finish == ADD ? *to + value : value;\n                }\n            if (finish == GELU)\n"
     "            for (int64_t k = 0; k < count; k++)\n                for (int64_t c = 0; c < columns; c++) {\n"
     "                    float *to = y + (t + k) * out + o + c;\n                    *to = gelu(*to);"),
    ("GELU by exp", "return 0.5f * v * (1 + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));",
     "return v / (1 + expf(-2 * 0.7978845608f * (v + 0.044715f * v * v * v)));"),
]  # fmt: skip
