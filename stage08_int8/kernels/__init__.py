"""The kernels: in C for CPUs (compiler.py compiles them, c_kernel.py calls them), and attention in Triton for CUDA."""
