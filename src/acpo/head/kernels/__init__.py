"""Triton kernels of the row step."""
