"""One thread per test process: the models are tiny and the cores are shared."""

import torch

torch.set_num_threads(1)
