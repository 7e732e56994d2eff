"""The tables of docs/estimates.md are those of `tests/perf/estimates.py`."""

import jax
import pytest
from perf.estimates import PAGES, PUBLISHED, compiled, microseconds
from support.libtpu_needed import needs_libtpu
from support.markdown_blocks import DOCS

TABLE = (DOCS / "estimates.md").read_text(encoding="utf-8").partition("## Against devices")[2].partition("##")[0]
ROWS = [line.strip("| ").split(" | ") for line in TABLE.splitlines() if line.startswith("| [")]


def cells(row):
    """The cells of a row but for its estimate."""
    return [f"[{row.what}]({PAGES[row.page]}), `{row.target}`", microseconds(row.us)]


def test_the_page_has_each_published_time_with_its_source():
    assert [row[:2] for row in ROWS] == [cells(row) for row in PUBLISHED]


@needs_libtpu
@pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="another compiler has other estimates")
@pytest.mark.parametrize("what", ["copy of 32 MiB", "ppermute, 1 MiB", "Pallas 8192^3, 512x1024x1024"])
def test_the_page_has_what_perfsuite_estimates_today(what):
    (row,) = [row for row in PUBLISHED if row.what == what]
    estimate = compiled(row.program(), row.target).estimated_us
    assert [*cells(row), f"{estimate / row.us:.2f}"] in ROWS
