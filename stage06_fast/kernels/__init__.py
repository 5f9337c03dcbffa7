"""The kernels: in C for CPUs (compiler.py compiles them, c_kernel.py calls them), and attention in Triton for CUDA."""

import os
import platform

# Another CPU's kernels, such as x86-64-v3, which is AVX2. ARM's are one build, which asks the CPU what it has.
MARCH = os.environ.get("STAGEWISE_MARCH") or ("native" if platform.machine() in ("x86_64", "AMD64") else "")
OPTIMIZE = ("-O3", "-fno-tree-vectorize")
FLAGS = (*OPTIMIZE, *([f"-march={MARCH}"] if MARCH else []), "-fno-math-errno", "-fPIC")
