"""The terminal's tables."""

import tabulate
from hypothesis import given
from hypothesis import strategies as st

from perfsuite.report.tables import aligned

CELLS = st.text(st.characters(codec="ascii", exclude_categories=("Cc",)), max_size=8)
ROWS = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), max_size=6))


def test_columns_are_aligned_and_texts_stay_as_they_are():
    assert aligned([("name", "value"), ("  a", "1e3"), ("b", "")]) == ["name  value", "  a   1e3", "b"]
    assert aligned([]) == []


@given(ROWS)
def test_a_table_is_that_of_tabulate(rows):
    made = tabulate.tabulate(rows, tablefmt="plain", disable_numparse=True, preserve_whitespace=True)
    assert aligned(rows) == [line.rstrip() for line in made.split("\n")][: len(rows)]
