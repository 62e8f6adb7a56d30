"""One thread per test process: the models are tiny and the cores are shared."""

import os

import torch

torch.set_num_threads(1)
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
