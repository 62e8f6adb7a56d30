"""Rewards for verl over `acpo.verify`: `reward.custom_reward_function.path=pkg://acpo.verl`."""

from collections.abc import Mapping
from typing import Any

from acpo.errors import ACPOError
from acpo.jsonl import json_object
from acpo.verify import code, math
from acpo.verify.digits import verify_digits
from acpo.verify.verdict import Outcome, Verdict

MATH, CODE, DIGITS = "math", "code", "digits"


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    wrong: float = 0.0,
    reward_router_address: Any = None,
    reward_model_tokenizer: Any = None,
) -> dict[str, float]:
    """Judge one response, as verl calls it.

    `acpo data verl` writes what judges a row into `extra_info.judge`; rows from elsewhere are math.

    Args:
        data_source: the data set, named in errors.
        solution_str: the response.
        ground_truth: the gold answer, or a code problem as JSON.
        extra_info: of the row.
        wrong: the reward of a wrong answer (`reward.custom_reward_function.reward_kwargs.wrong`).
        reward_router_address: not used; a reward model's, where there is one.
        reward_model_tokenizer: likewise.

    Returns:
        `score`: 1, `wrong`, or NaN for a response that was not judged, which the advantage
        estimator `acpo` leaves out of its group; `acc` for validation; `judged`.
    """
    judge = (extra_info or {}).get("judge", MATH)
    if judge == MATH:
        verdict = await math.shared_pool().verify_async(solution_str, str(ground_truth))
    elif judge == DIGITS:
        verdict = verify_digits(solution_str, str(ground_truth))
    elif judge == CODE:
        problem = _code_problem(data_source, ground_truth)
        verdict = await code.shared_pool().verify_async(solution_str, problem)
    else:
        raise ACPOError(
            f"extra_info.judge={judge!r} of data_source={data_source!r} is unknown; use {MATH!r}, "
            f"{DIGITS!r} or {CODE!r}"
        )
    return _score(verdict, wrong)


def _code_problem(data_source: str, ground_truth: Any) -> dict[str, Any]:
    try:
        return json_object(ground_truth)
    except (TypeError, ValueError) as error:
        raise ACPOError(
            f"ground_truth of data_source={data_source!r} is not a code problem as JSON ({error}); "
            "write the file with `acpo data verl`"
        ) from None


def _score(verdict: Verdict, wrong: float) -> dict[str, float]:
    reward = verdict.reward(wrong=wrong)
    return {
        "score": float("nan") if reward is None else reward,
        "acc": float(verdict.outcome is Outcome.CORRECT),
        "judged": float(reward is not None),
    }
