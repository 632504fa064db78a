"""Kernels in CUDA C++ for what Triton cannot say on Hopper (clusters that share loads): their sources, and
how they are compiled by NVRTC, loaded and launched. Knows no operation: launchers are beside Triton's.
"""
