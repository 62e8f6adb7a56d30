"""The numbers the ACPO paper prints. They are the paper's; nothing here was measured by us.

Main table (mean@8; pass@1 on HumanEval Pro; average of the six) and ablation table (mean@8 on
AIME24, Qwen3-8B-Base). `docs/method.md` says what in them does not add up.
"""

from typing import NamedTuple


class Printed(NamedTuple):
    """One row's numbers in percent; None where the paper has none.

    Attributes:
        aime24: AIME24, Qwen3-8B-Base (main and ablation tables).
        qwen3: average of six benchmarks, Qwen3-8B-Base.
        qwen25: average of six benchmarks, Qwen2.5-Math-7B.
    """

    aime24: float
    qwen3: float | None = None
    qwen25: float | None = None


COLUMNS = {
    "aime24": "AIME24, Qwen3-8B-Base",
    "qwen3": "average of six, Qwen3-8B-Base",
    "qwen25": "average of six, Qwen2.5-Math-7B",
}

PAPER: dict[str, Printed] = {
    "grpo": Printed(22.60, 27.27, 27.76),
    "dapo": Printed(24.89, 30.42, 29.44),
    "8020": Printed(26.02, 30.97, 29.81),
    "gtpo": Printed(27.21, 32.37, 31.89),
    "sapo": Printed(29.06, 33.49, 31.53),
    "acpo_no_routing": Printed(30.31, 35.31, 34.04),
    "acpo": Printed(34.28, 36.40, 35.15),
    "fixed": Printed(26.12),
    "positive_only": Printed(28.58),
    "nonpositive_only": Printed(27.65),
    "shannon": Printed(26.68),
    "shannon_offset": Printed(25.19),
    "global_sg": Printed(27.30),
    "global_sg_offset": Printed(24.75),
}
