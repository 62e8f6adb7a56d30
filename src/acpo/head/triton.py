"""The row step on CUDA."""
