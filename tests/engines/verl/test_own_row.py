"""A row of one's own, added to the table before verl loads the plugin, trains as it is defined."""

import pytest
import torch

from acpo.objectives import METHODS
from engines.own_row import OWN
from engines.verl.launch import run_ranks
from engines.verl.rollouts import by_definition, sample, save_model

CASES = {
    "mine": {"method": "mine"},
    "mine, options": {"method": "mine", "options": {"sharpness": 2.0}},
    "mine, scattered": {"method": "mine", "scattered": True, "dynamic": True},
    "mine, T=0.7": {"method": "mine", "temperature": 0.7, "remove_padding": False},
    "sapo of verl": {"method": "sapo"},
}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own_row")
    model = save_model(folder / "model")
    rollouts = {t: sample(model, temperature=t) for t in (1.0, 0.7)}
    torch.save({"cases": CASES, "rollouts": rollouts}, folder / "job.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, OWN.name, OWN)
        expected = {
            name: by_definition(model, rollouts[case.get("temperature", 1.0)], **case)
            for name, case in CASES.items()
        }
    ranks = run_ranks("engine_worker", folder, 2, modules=("engines.verl.own_row",))
    return expected, ranks[2]


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_the_definition(job, name):
    expected, ranks = job[0][name], job[1]
    for rank in ranks:
        torch.testing.assert_close(rank[name]["loss"], expected["loss"], rtol=1e-5, atol=1e-5)
        both = [torch.cat([x[k].flatten() for k in expected]) for x in (rank[name], expected)]
        assert (both[0] - both[1]).norm() < 1e-5 * both[1].norm()


def test_the_row_and_its_option_make_a_difference(job):
    losses = [float(job[0][name]["loss"]) for name in ("mine", "mine, options", "sapo of verl")]
    assert len(set(losses)) == len(losses)
