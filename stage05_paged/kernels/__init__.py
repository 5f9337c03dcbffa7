"""The custom attention kernels: one in C for CPUs, one in Triton for CUDA. attention.py picks one."""

import platform

# What is compiled here runs here. On ARM there is nothing to choose, and not every compiler knows the word.
NATIVE = ("-march=native",) if platform.machine() in ("x86_64", "AMD64") else ()
FLAGS = ("-O3", *NATIVE, "-fno-math-errno", "-fPIC")
