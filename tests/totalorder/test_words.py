"""How names are told."""

import pytest

from totalorder.words import did_you_mean, few


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, ""), (1, "t0"), (3, "t0, t1, t2"), (4, "t0, t1, t2 and 1 more"), (2003, "t0, t1, t2 and 2,000 more")],
)
def test_of_many_names_a_few_are_told(count: int, told: str) -> None:
    assert few([f"t{at}" for at in range(count)], 3) == told


def test_only_a_name_that_is_nearly_so_is_asked_for() -> None:
    assert did_you_mean("ordres", ["payments", "orders"]) == "Did you mean 'orders'? "
    assert did_you_mean("ordres", ["payments"]) == did_you_mean("ordres", []) == ""
