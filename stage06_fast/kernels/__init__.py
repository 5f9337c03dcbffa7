"""The kernels: in C for CPUs (c_kernel.py compiles and calls them), and attention in Triton for CUDA."""
