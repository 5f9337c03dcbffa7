"""The custom attention kernels: one in C for CPUs, one in Triton for CUDA. attention.py picks one."""
