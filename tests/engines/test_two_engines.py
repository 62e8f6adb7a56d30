"""The file shared with verl's environment is what `ACPOTrainer` does today."""

import pytest
import torch

from engines.two_engines import METHODS, by_trainer, flattened, load


@pytest.mark.parametrize("method", METHODS)
def test_the_file_is_the_trainers_update(tmp_path, method):
    now, kept = flattened(by_trainer(method, tmp_path)), flattened(load(method))
    assert now.keys() == kept.keys()
    for name, value in kept.items():
        torch.testing.assert_close(now[name], value, rtol=1e-4, atol=1e-5)
    gradient = torch.cat([kept[name].flatten() for name in kept if name.startswith("gradient/")])
    assert gradient.norm() > 1e-3
