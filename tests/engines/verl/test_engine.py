"""Loss and gradient through verl's FSDP2 engine and `ppo_loss` are those of the definition."""

import warnings

import pytest
import torch

from acpo.errors import ACPOWarning
from acpo.objectives import METHODS
from engines.verl.launch import run_ranks
from engines.verl.rollouts import ELSEWHERE, THEIRS, by_definition, sample, save_model

# verl's own losses of these names are not ours: cispo clamps the ratio from both sides.
ROWS = [name for name in METHODS if name not in (*THEIRS, *ELSEWHERE)]

# A random policy is so uncertain that GTPO would filter every completion.
UNFILTERED = {"options": {"initial_entropy": 1.0}}

CASES = {name: {"method": name} for name in ROWS}
SETTINGS = {
    "padded": {"remove_padding": False},
    "T=0.7": {"temperature": 0.7},
    "T=0.7, padded": {"temperature": 0.7, "remove_padding": False},
    "dynamic": {"dynamic": True},
    "entropy bonus": {"entropy_coeff": 0.01},
    "KL": {"beta": 0.05},
    "nested": {"nested": True, "dynamic": True},
}
# Each with one process or with two, so that every row and every setting is run with both.
CASES |= {
    f"{method}, {label}": {"method": method, **SETTINGS[label], "world": 1 + (row + column) % 2}
    for row, method in enumerate(("acpo", "acpo_no_routing", "shannon", "8020", "acpo_balanced"))
    for column, label in enumerate(SETTINGS)
}
CASES |= {
    "gtpo": {"method": "gtpo", **UNFILTERED},
    "gtpo, nested": {"method": "gtpo", "nested": True, **UNFILTERED},
    "gtpo, scattered": {"method": "gtpo", "scattered": True, **UNFILTERED},
    "gtpo_entropy, scattered": {"method": "gtpo_entropy", "scattered": True},
    "8020, scattered": {"method": "8020", "scattered": True},
    "global_sg_balanced, scattered": {"method": "global_sg_balanced", "scattered": True},
    "gtpo_entropy, dynamic": {"method": "gtpo_entropy", "dynamic": True},
    "acpo, options": {"method": "acpo", "options": {"offset": 1.5, "mismatch_scale": "auto"}},
    "sapo of verl": {"method": "sapo"},
    "acpo, signs": {"method": "acpo", "options": {"positive_weight": 0.5}},
    "acpo, share": {"method": "acpo", "options": {"positive_share": 0.3}, "scattered": True},
}
CASES |= {
    f"{method}, per token": {"method": method, "per_token": True, "nested": method == "aspo"}
    for method in ("acpo", "8020", "aspo", "acpo_balanced")
}
CASES["gtpo, per token"] = {"method": "gtpo", "per_token": True, "scattered": True, **UNFILTERED}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    model = save_model(folder / "model")
    rollouts = {t: sample(model, temperature=t) for t in (1.0, 0.7)}
    torch.save({"cases": CASES, "rollouts": rollouts}, folder / "job.pt")
    expected = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ACPOWarning)
        for name, case in CASES.items():
            batch = rollouts[case.get("temperature", 1.0)]
            expected[name] = by_definition(model, batch, **case)
    return folder, expected


@pytest.fixture(scope="module")
def results(job):
    return run_ranks("engine_worker", job[0], 1, 2)


@pytest.mark.parametrize(
    ("world", "name"), [(w, n) for w in (1, 2) for n in CASES if CASES[n].get("world", w) == w]
)
def test_loss_and_gradient_are_the_definition(job, results, world, name):
    expected = job[1][name]
    for found in results[world]:
        got = dict(found[name])
        got.pop("metrics")
        assert got.keys() == expected.keys()
        torch.testing.assert_close(got["loss"], expected["loss"], rtol=1e-5, atol=1e-5)
        for parameter, gradient in expected.items():
            torch.testing.assert_close(got[parameter], gradient, rtol=1e-4, atol=1e-5)
        both = [torch.cat([x[k].flatten() for k in expected]) for x in (got, expected)]
        assert both[1].norm() > 1e-3
        assert (both[0] - both[1]).norm() / both[1].norm() < 1e-5


@pytest.mark.parametrize("world", [1, 2])
def test_the_engine_is_the_extended_one_and_reports_the_mode(results, world):
    first = results[world][0]
    assert first["engine"] == "ACPOFSDPEngineWithLMHead"
    aligned = first["acpo"]["metrics"]["actor/acpo/aligned"].aggregate()
    assert 0.3 < aligned < 0.9
