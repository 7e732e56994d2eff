"""The history as a page: every metric that moved is on it, as text alone, also in a browser."""

import shutil

import pytest
from support.git_project import TEST, GitProject, count, ratio, with_versions

from perfsuite.commands import main
from perfsuite.gate.baseline import Entry
from perfsuite.report.history_page import PAGE, history_beside


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


def test_the_page_has_every_metric_that_moved_and_nothing_unescaped(project, capsys):
    for value in (2, 3):
        environment = with_versions(jax=f"0.{value}.0")
        project.save(
            {"<b>compiles</b> $x$": count(value, environment), "still": count(1, environment)}, "<script>x</script>"
        )
    assert main(["history", "--out", "page.html"]) == 0
    assert "written: page.html" in capsys.readouterr().out
    page = (project.root / "page.html").read_text(encoding="utf-8")
    assert "1 metric has moved" in page
    assert page.count("<svg") == 1
    assert "&lt;b&gt;compiles&lt;/b&gt; $x$" in page
    assert "<b>compiles" not in page
    assert "&lt;script&gt;x&lt;/script&gt;" in page
    assert page.count("<script") == 1
    assert "jax 0.2.0 -&gt; 0.3.0" in page
    assert "http://" not in page
    assert "https://" not in page
    assert [path.name for path in project.root.iterdir() if path.name.startswith(".page")] == []


def test_a_browser_shows_the_page_at_the_width_of_a_phone(project):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium, chromium-browser or google-chrome is installed")
    for value in (2, 3):
        project.save({"compiles": count(value), "traces": count(9 - value)}, "A subject " * 20)
    assert main(["history", "--out", "page.html"]) == 0
    said: list[str] = []
    with (
        sync_api.sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]) as browser,
    ):
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((project.root / "page.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.locator("svg.picture").count() == 2
        page.get_by_label("worse").check()
        assert page.locator("#f1-metrics tbody tr:visible td.name").all_inner_texts() == [f"compiles\n{TEST}"]
    assert said == []


def test_every_kind_of_metric_can_be_drawn(project):
    """Steps both ways, breaks, gaps, values at zero, below it and far apart, more new versions than have room."""
    for place in range(8):
        environment = with_versions(jax=f"0.{place}.0", processor="Xeon" if place < 5 else "EPYC")
        metrics = {
            "gap": count(place * 2, environment),
            "drifting": ratio(1.0 + place, 0.01, environment, better="higher"),
            "time": Entry(10.0 ** (place % 5), "us", "time", "measured", environment),
            "zero": Entry(place % 2, "bytes", "size", "measured", environment),
        }
        if place == 3:
            del metrics["gap"]
        project.save(metrics)
    assert main(["history", "--out", "page.html", "--metrics", "2"]) == 0
    assert (project.root / "page.html").read_text(encoding="utf-8").count("<svg") == 2
    assert main(["history", "--out", "page.html"]) == 0
    assert (project.root / "page.html").read_text(encoding="utf-8").count("<svg") == 4


def test_a_report_gets_the_page_beside_it_or_the_reason_why_not(project, tmp_path, monkeypatch):
    report, baselines = tmp_path / "report", project.root / "baselines"
    report.mkdir()
    page, why = history_beside(report, baselines)
    assert (page, why) == (None, f"no history: no baseline file in {baselines}")
    project.write({"compiles": count(2)})
    page, why = history_beside(report, baselines)
    assert page is None
    assert "no commit yet" in why
    project.commit()
    project.save({"compiles": count(3)})
    page, said = history_beside(report, baselines, project.root)
    assert page == report / PAGE
    assert str(project.root) not in page.read_text(encoding="utf-8")
    assert "1 metric moved in the history of 1 baseline file" in said
    assert "2 → 3 compiles" in page.read_text(encoding="utf-8")
    monkeypatch.setenv("PATH", "")
    page, why = history_beside(report, baselines)
    assert page is None
    assert "git is not installed" in why
