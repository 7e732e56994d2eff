"""`output`: what the pages of the terminal share."""

from perfsuite.report.terminal.output import aligned


def test_a_table_aligns_its_columns_and_leaves_texts_as_they_are():
    assert aligned([["name", "value"], ["  a", "1e3"], ["b", ""]]) == ["name  value", "  a   1e3", "b"]
    assert aligned([]) == []
