"""The tables of docs/estimates.md are those of `tests/perf/estimates.py`."""

import jax
import pytest
from perf.estimates import PAGES, PUBLISHED, compiled, microseconds
from support.libtpu_needed import needs_libtpu
from support.markdown_blocks import DOCS

CELLS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (DOCS / "estimates.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| [")
]
ESTIMATED = {(what, target): estimate for what, target, _, estimate, _ in (row for row in CELLS if len(row) == 5)}


def name(row):
    return f"[{row.what}]({PAGES[row.page]})", f"`{row.target}`"


def test_the_page_has_each_published_time_with_its_source():
    published = {(what, target, us) for what, target, us, _, _ in (row for row in CELLS if len(row) == 5)}
    assert published == {(*name(row), microseconds(row.us)) for row in PUBLISHED}


def test_the_ratios_of_the_page_are_those_of_its_times():
    for *_, us, estimate, ratio in (row for row in CELLS if len(row) == 5):
        measured, estimated = (float(cell.replace(",", "")) for cell in (us, estimate))
        assert float(ratio) == pytest.approx(estimated / measured, abs=0.006 + 0.01 * float(ratio))


@needs_libtpu
@pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="another compiler has other estimates")
@pytest.mark.parametrize("what", ["copy of 32 MiB", "ppermute, 1 MiB"])
def test_the_page_has_what_perfsuite_estimates_today(what):
    (row,) = [row for row in PUBLISHED if row.what == what]
    assert microseconds(compiled(row.program(), row.target).estimated_us) == ESTIMATED[name(row)]
