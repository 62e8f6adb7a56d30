"""No attack is left out silently."""

import re
from pathlib import Path

ATTACKS_ON_VERIFICATION = set(range(1, 43))


def test_every_attack_has_a_test():
    found = set()
    for path in Path(__file__).parent.glob("test_attacks_*.py"):
        found |= {int(n) for n in re.findall(r"^def test_attack_(\d+)_", path.read_text(), re.M)}
    assert found == ATTACKS_ON_VERIFICATION
