"""The page in a real browser: it renders, sorts, filters, fits a phone, is readable when dark, and loads nothing."""

import re
import shutil
import subprocess
import sys

import pytest

from perfsuite.gate.baseline import Baselines, Entry
from perfsuite.gate.baseline_file import encode

sync_api = pytest.importorskip("playwright.sync_api")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome is installed")

LINE = "</title></style><script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">"

TESTS = f"""
import json, pathlib
import jax
import jax.numpy as jnp
import pytest
from perfsuite import Budget, call

LINE = {LINE!r}
x = jnp.ones((8, 8))
product = jax.jit(lambda x: x @ x)

def work(n):
    return lambda x: [len(x) for _ in range(n)]

@pytest.mark.parametrize("variant", ["list", "flat state", LINE])
def test_tax(perf, variant):
    calls = call(work(400 + 100 * len(variant) % 300), [1]), call(work(400), [1])
    perf.compare(*calls, Budget(ratio=2.0), name=f"{{variant}}/floor", until="return")
    perf.record(f"{{variant}} leaves", len(variant), unit="leaves", kind="count")

def test_scaling(perf):
    perf.scaling(lambda size: (call(work(size), [1]), size), [10, 20, 40], metric="host_calls", name="work")

def test_program(perf):
    perf.program(call(product, x), name="product")

def test_numbers(perf):
    for name, value in (("b", 1000), ("a", 90), ("c", 20000.5), ("d", 7)):
        perf.record(name, value, unit="us", kind="info")
    perf.record("worse", 21, unit="arrays", kind="count")
    perf.record("better", 19, unit="arrays", kind="count")
    perf.record(LINE, 1, unit="things", kind="count")

def test_raises(perf):
    raise ValueError(LINE)
"""

BASELINES = Baselines(
    "cpu",
    {"test_it.py::test_numbers": {name: Entry(20, "arrays", "count", "compiled") for name in ("better", "worse")}},
)


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    """The report of a real session in a process of its own."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "baselines").mkdir()
    (folder / "baselines/cpu.json").write_bytes(encode(BASELINES))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--perf",
        "--perf-report=out",
        "--perf-seconds=0.1",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "report: out/report.html" in done.stdout, done.stdout
    return folder / "out/report.html"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        # Chromium's sandbox does not start for root, and needs what a container may lack. The page is this test's own.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages():
    """One page for every kind of screen."""
    made = {}
    yield made
    for page in made.values():
        page.context.close()


@pytest.fixture
def open_page(browser, page_path, pages):
    """Open the report at its table; when the test ends, nothing may have been said on the console, or asked of a network."""
    said = []

    def opened(width=1280, height=900, scheme="light", fragment="#all-metrics", **options):
        screen = {"viewport": {"width": width, "height": height}, "color_scheme": scheme, **options}
        if str(screen) not in pages:
            pages[str(screen)] = browser.new_context(**screen).new_page()
        page = pages[str(screen)]
        listeners = {
            "console": lambda message: said.append(message.text),
            "pageerror": lambda error: said.append(str(error)),
            "request": lambda request: said.append(request.url) if request.url.split("#")[0] != address else None,
        }
        page.goto("about:blank")
        for event, listener in listeners.items():
            page.on(event, listener)
            listening.append((page, event, listener))
        page.goto(address + fragment)
        return page

    address, listening = page_path.as_uri(), []
    yield opened
    for page, event, listener in listening:
        page.remove_listener(event, listener)
    assert not said


def shown(page) -> list[str]:
    """The titles of the rows that the table of metrics shows, from top to bottom."""
    return page.locator("#metrics tbody tr:visible td:first-child a").all_inner_texts()


def test_the_page_renders_and_never_runs_a_name(open_page):
    page = open_page()
    assert page.title().startswith("perfsuite: project")
    assert page.locator("h1").inner_text() == "2 of 7 perf tests failed"
    assert page.locator("#failures pre").count() == 2
    assert LINE in page.locator("#failures").inner_text()
    assert page.locator("img").count() == 0


def test_columns_sort_by_number_and_text_both_ways_and_back(open_page):
    page = open_page()
    page.locator("form input[type=search]").fill("test_numbers info")
    order = shown(page)
    value = page.get_by_role("columnheader", name="value").first
    button = value.get_by_role("button")
    button.click()
    assert (shown(page), value.get_attribute("aria-sort")) == (["d", "a", "b", "c"], "ascending")
    button.press("Enter")
    assert (shown(page), value.get_attribute("aria-sort")) == (["c", "b", "a", "d"], "descending")
    button.press("Enter")
    assert (shown(page), value.get_attribute("aria-sort")) == (order, None)
    page.locator("#metrics thead button").first.click()
    assert shown(page) == ["a", "b", "c", "d"]


def test_the_page_opens_on_what_failed_and_the_rest_is_folded(open_page):
    page = open_page(fragment="")
    assert page.locator("#failures pre").first.is_visible()
    assert page.locator("#look pre", has_text="better").is_visible()
    assert not page.locator("#metrics").is_visible()
    page.locator("nav a", has_text="Metrics").click()
    sync_api.expect(page.locator("#metrics")).to_be_visible()  # it waits: the page unfolds it after the click has ended


def test_rows_are_filtered_by_verdict_and_text(open_page):
    page = open_page()
    total = len(shown(page))
    output = page.locator("form output")
    assert output.inner_text() == f"{total} of {total} rows"
    page.get_by_role("checkbox", name="fail").check()
    assert shown(page) == ["worse"]
    page.get_by_role("checkbox", name="improved").check()
    assert sorted(shown(page)) == ["better", "worse"]
    page.locator("form input[type=search]").fill("BETT arrays")
    assert (shown(page), output.inner_text()) == (["better"], f"1 of {total} rows")
    page.locator("form input[type=search]").fill("no such metric")
    assert (shown(page), output.inner_text()) == ([], f"0 of {total} rows")


def test_a_link_opens_the_closed_part_that_it_leads_to(open_page):
    page = open_page()
    link = page.locator("#metrics tbody a", has_text="work host calls per unit")
    details = page.locator("details", has=page.locator(link.get_attribute("href")))
    assert details.get_attribute("open") is None
    link.click()
    sync_api.expect(details).to_have_attribute("open", "")  # it waits, as above
    assert details.locator("code").first.is_visible()


def test_a_phone_scrolls_tables_in_their_boxes_and_never_the_page(open_page):
    width = 390
    page = open_page(width=width, height=844, is_mobile=True, has_touch=True)
    page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    wide = page.evaluate(
        """[...document.querySelectorAll("body *")].filter(each => !each.closest(".box")
        && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML.slice(0, 80))"""
    )
    assert wide == []
    assert page.locator("#metrics").evaluate("each => each.offsetWidth > each.parentElement.clientWidth")


def luminance(color: str) -> float:
    """As the WCAG defines it, of `rgb(1, 2, 3)`."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


COLORS = """[...document.querySelectorAll("body, body *")].filter(each =>
    [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim())
    && !["SCRIPT", "TITLE"].includes(each.tagName)).map(each => {
        let behind = each;
        while (behind && ["rgba(0, 0, 0, 0)", "transparent"].includes(getComputedStyle(behind).backgroundColor))
            behind = behind.parentElement;
        const style = getComputedStyle(each);
        return [style.color, behind ? getComputedStyle(behind).backgroundColor : "rgb(255, 255, 255)", each.outerHTML];
    })"""
"""Of every element with a text of its own: its colour, that behind it, and what it is."""


def test_light_and_dark_differ_and_all_text_can_be_read_in_both(open_page):
    seen = {}
    for scheme in ("light", "dark"):
        page = open_page(scheme=scheme)
        page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        colors = page.evaluate(COLORS)
        assert len(colors) > 200
        for color, behind, what in colors:
            assert contrast(color, behind) >= 4.5, (scheme, color, behind, what[:200])
        seen[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert luminance(seen["light"]) > 0.8
    assert luminance(seen["dark"]) < 0.1


def test_the_keyboard_reaches_the_filter_the_heads_and_the_box(open_page):
    page = open_page()
    page.locator("form input[type=search]").focus()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
        if "BUTTON." in reached:
            break
    assert [reached.count(name) >= 1 for name in ("INPUT.", "DIV.box", "BUTTON.")] == [True] * 3


def test_print_shows_every_row_and_no_controls(open_page):
    page = open_page()
    page.emulate_media(media="print")
    assert not page.locator("form").is_visible()
    assert page.locator(".box").first.evaluate("each => each.scrollHeight <= each.clientHeight + 1")
