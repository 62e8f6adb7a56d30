"""What the tests of verdicts share."""

from collections.abc import Iterator

import pytest

from acpo.verify import MathPool


@pytest.fixture(scope="session")
def pool() -> Iterator[MathPool]:
    """One pool for every test that only asks: its server takes seconds to start."""
    with MathPool(2) as made:
        yield made
