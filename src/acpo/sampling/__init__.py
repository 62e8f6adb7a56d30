"""Fast batched sampling for small models: a static key-value cache and, on CUDA, graphs."""

from acpo.sampling.sampler import Samples, StaticSampler

__all__ = ["Samples", "StaticSampler"]
