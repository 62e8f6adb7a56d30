"""Benchmarks, sampling backends, and accuracies with intervals that hold."""
