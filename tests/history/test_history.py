"""`perfsuite history`: the baselines' git history is read as it is, and what moved in it is found where it moved."""

import itertools
import math
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support.git_project import HERE, ISOLATED, TEST, GitProject, count, ratio, with_versions

from perfsuite.commands import main
from perfsuite.gate.baseline import Entry
from perfsuite.history.following import follow
from perfsuite.history.git import Repository
from perfsuite.history.reading import HistoryError, Series, read_history
from perfsuite.history.source import title_of
from perfsuite.history.steps import change_points, runs_of, steps_of, version_marks
from perfsuite.measure.measurement import Interval
from perfsuite.report.history_page import PAGE, history_beside
from perfsuite.report.terminal.history import LETTERS, sparkline

NOISE = 0.02
"""Of the simulated ratios, from save to save: as much as a machine that is not quiet has."""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    for name, value in ISOLATED.items():
        monkeypatch.setenv(name, value)
    project = GitProject(tmp_path / "project")
    monkeypatch.chdir(project.root)
    return project


def history(project, *arguments):
    """Read and follow `baselines/cpu.json`."""
    return follow(read_history(project.root / "baselines" / "cpu.json", *arguments))


def steps(following):
    """What moved where: (metric, short hash, before, after)."""
    versions = following.history.versions
    return [
        (step.name, versions[step.version].commit.short, step.before, step.after)
        for each in following.metrics
        for step in each.steps
    ]


def noisy(seed, length=20, noise=NOISE):
    """A ratio of 1.2 and its noise."""
    return 1.2 * np.exp(np.random.default_rng(seed).normal(size=length) * noise)


def series(entries):
    """A series of nothing but these."""
    return Series(TEST, "metric", tuple(entries))


def ratios(values):
    """A series of ratios whose intervals say half of what they vary by."""
    return series(ratio(float(value), 0.01) for value in values)


# What is found.


def test_a_step_of_8_percent_in_a_noisy_ratio_is_found_at_its_commit_with_the_version_that_came_with_it(project):
    values = noisy(1)
    values[12:] *= 1.08
    other = with_versions(jax="0.11.0")
    hashes = [
        project.save({"ratio": ratio(float(value), 0.01, HERE if place < 12 else other)}, f"Save {place}")
        for place, value in enumerate(values)
    ]
    following = history(project)
    ((name, commit, before, after),) = steps(following)
    assert (name, commit) == ("ratio", hashes[12])
    assert after / before == pytest.approx(1.08, abs=0.02)
    (of_commit,) = following.commits
    assert of_commit.steps[0].by == "change point"
    assert of_commit.versions == (("jax 0.10.2 -> 0.11.0", 1),)
    assert (of_commit.commit.subject, of_commit.commit.author, of_commit.commit.day) == ("Save 12", "Ada", "2026-01-01")


def test_what_is_printed_of_it_names_commit_change_and_version(project, capsys):
    before, after = HERE, with_versions(jax="0.11.0", equinox="0.14.0")
    project.save({"compiles": count(2, before), "steady": count(1, before)}, "First")
    project.commit("Work that may be the cause")
    hash = project.save({"compiles": count(3, after), "steady": count(1, after)}, "Save with a newer jax")
    assert main(["history"]) == 0
    output = capsys.readouterr().out
    assert "baselines/cpu.json: 2 versions" in output
    assert "1 of 2 metrics moved" in output
    (row,) = [line for line in output.splitlines() if line.startswith("  compiles")]
    assert re.split(" {2,}", row.strip()) == ["compiles", "2 -> 3 compiles", "+50 %", hash, "▁█", TEST]
    assert f"{hash} (2026-01-01): jax 0.10.2 -> 0.11.0, equinox 0.13.8 -> 0.14.0" in output
    assert f"{hash} 2026-01-01 Ada: 1 worse, within the 2 commits since" in output
    assert "Save with a newer jax" in output
    assert "equinox 0.13.8 -> 0.14.0, with 1 metric that moved" in output


def test_series_without_a_step_stay_silent():
    """Measured: of 200 seeded series of 20 saves with 2 % of noise one moves, of 8 saves none, of 50 one."""
    assert sum(bool(steps_of(ratios(noisy(seed)))) for seed in range(200)) <= 2


@pytest.mark.parametrize("noise", ["heavy tails", "outliers"])
def test_noise_that_is_not_normal_makes_no_steps_either(noise):
    """Measured: 3 and 1 of 200 series; of the first 100, which are tried here, 2 and 1."""
    alarms = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        if noise == "heavy tails":
            values = rng.standard_t(4, size=20)
        else:
            values = rng.normal(size=20) * np.where(rng.random(20) < 0.05, 5, 1)
        alarms += bool(change_points(values * NOISE))
    assert alarms <= 3


def test_a_step_is_found_in_nine_of_ten_series_at_its_very_place():
    found = 0
    for seed in range(100):
        values = noisy(seed)
        values[12:] *= 1.08
        found += [step.version for step in steps_of(ratios(values))] == [12]
    assert found >= 85


def test_a_ratio_that_grows_with_every_save_has_moved():
    for length in (4, 8, 12, 20):
        assert steps_of(ratios(1.0 + np.arange(length)))
    (step,) = steps_of(ratios(1.0 + np.arange(8)))
    assert (step.by, step.before, step.after) == ("drift", 2.5, 6.5)


def test_one_bad_save_in_the_middle_is_no_step():
    values = noisy(1)
    values[9] *= 1.5
    assert steps_of(ratios(values)) == []


def test_the_last_save_is_held_against_the_level_before_it_by_the_gates_rule():
    values = noisy(2)
    values[-1] *= 1.2
    (step,) = steps_of(ratios(values))
    assert (step.version, step.by, step.worse) == (19, "gate", True)


def test_of_two_saves_the_gates_rule_decides():
    assert steps_of(ratios([1.0, 1.04])) == []  # within the tolerance
    (step,) = steps_of(ratios([1.0, 1.2]))
    assert (step.by, step.before, step.after, step.worse) == ("gate", 1.0, 1.2, True)
    assert not steps_of(series([ratio(1.0, 0.1), ratio(1.2, 0.14)]))  # the intervals overlap


def test_a_count_or_size_moves_with_any_other_value_and_nothing_else_does():
    assert [(step.version, step.after) for step in steps_of(series(map(count, [2, 2, 3, 3, 2])))] == [(2, 3), (4, 2)]
    sizes = [Entry(size, "bytes", "size", "compiled") for size in (10_000, 10_001)]
    (step,) = steps_of(series(sizes))
    assert step.change == pytest.approx(1e-4)


def test_what_a_save_kept_is_one_observation_and_not_many():
    kept = ratio(1.0, 0.01)
    (run,), _ = runs_of(series([kept] * 30 + [ratio(1.2, 0.01)]))
    assert [observation.version for observation in run] == [0, 30]


def test_a_metric_that_was_off_file_goes_on_where_it_was():
    assert [step.version for step in steps_of(series([count(2), None, None, count(3)]))] == [3]
    assert steps_of(series([None, count(2), None, count(2)])) == []


def test_no_step_is_sought_across_another_processor_and_that_is_said(project, capsys):
    other = with_versions(processor="EPYC")
    for value, environment in [(100.0, HERE), (101.0, HERE), (900.0, other), (905.0, other)]:
        project.save({"step": Entry(value, "us", "time", "measured", environment, Interval(value - 5, value + 5))})
    following = history(project)
    assert steps(following) == []
    assert [(version, count) for version, _, count in following.breaks] == [(2, 1)]
    main(["history"])
    assert "host processor differs (Xeon, now EPYC)" in capsys.readouterr().out


def test_metrics_at_or_below_zero_have_steps_too():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(-5, 0.2, 10), rng.normal(3, 0.2, 10)])
    entries = [Entry(float(value), "us", "info", "measured", HERE) for value in values]
    assert [step.version for step in steps_of(series(entries))] == [10]


def test_an_info_metric_moves_when_it_doubles():
    def of(*values):
        return steps_of(series(Entry(value, "s", "info", "compiled") for value in values))

    assert of(10.0, 19.0, 11.0, 6.0) == []
    assert [step.after for step in of(10.0, 21.0)] == [21.0]
    assert [step.after for step in of(21.0, 10.0)] == [10.0]


def test_marks_are_where_the_versions_of_a_metric_change():
    newer = with_versions(jax="0.11.0")
    marked = series([count(1), None, count(1, newer), count(1, newer), count(1)])
    assert version_marks(marked) == [(2, ["jax 0.10.2 -> 0.11.0"]), (4, ["jax 0.11.0 -> 0.10.2"])]


# What is read.


def test_commits_that_cannot_be_read_are_skipped_and_named_with_the_reason(project, capsys):
    project.save({"compiles": count(2)}, "Good")
    older = project.save(b'{\n "schema": 0\n}\n', "Of an older perfsuite")
    newer = project.save(b'{\n "schema": 99\n}\n', "Of a newer perfsuite")
    merged = project.save(b"<<<<<<< HEAD\n", "Half merged")
    binary = project.save(b"\xff\xfe\x00", "No text")
    (project.root / "baselines" / "cpu.json").unlink()
    deleted = project.commit("Deleted")
    last = project.save({"compiles": count(3)}, "Good again")
    assert main(["history"]) == 0
    skipped = [line for line in capsys.readouterr().out.splitlines() if "skipped" in line]
    whys = [(older, "older perfsuite"), (newer, "newer perfsuite"), (merged, "merge conflict"), (binary, "not UTF-8"),
            (deleted, "deleted")]  # fmt: skip
    assert len(skipped) == len(whys)
    for line, (hash, why) in zip(skipped, whys, strict=True):
        assert f"skipped {hash} (2026-01-01, " in line
        assert why in line
    assert steps(history(project)) == [("compiles", last, 2, 3)]


def test_a_merge_is_one_step_and_the_states_of_the_branch_are_none(project):
    first = project.save({"compiles": count(2)})
    project.git("checkout", "--quiet", "-b", "side")
    project.save({"compiles": count(9)}, "On the branch")
    project.save({"compiles": count(4)}, "On the branch too")
    project.git("checkout", "--quiet", "main")
    project.commit("Meanwhile")
    project.minutes += 1
    project.git("merge", "--quiet", "--no-ff", "--message", "Merge side", "side")
    merge = project.git("rev-parse", "--short", "HEAD").strip()
    following = history(project)
    assert [version.commit.short for version in following.history.versions] == [first, merge]
    assert steps(following) == [("compiles", merge, 2, 4)]


def test_a_move_to_another_folder_is_followed(project):
    project.save({"compiles": count(2)}, path="old place/cpu.json")
    (project.root / "baselines").mkdir()
    project.git("mv", "old place/cpu.json", "baselines/cpu.json")
    project.commit("Moved")
    last = project.save({"compiles": count(3)})
    following = history(project)
    assert len(following.history.versions) == 3
    assert steps(following) == [("compiles", last, 2, 3)]


def test_a_file_made_as_the_copy_of_another_devices_does_not_inherit_its_history(project):
    """`git log --follow` would take it for one: most of such a file is the same."""
    metrics = {f"metric {number}": count(number) for number in range(50)}
    project.save(metrics, path="baselines/tpu-v4.json")
    made = project.save(metrics)
    assert [version.commit.short for version in history(project).history.versions] == [made]
    (project.root / "baselines" / "tpu-v4.json").unlink()
    moved = project.save(metrics, "Git takes this for a move", path="baselines/tpu-v5p.json")
    versions = read_history(project.root / "baselines" / "tpu-v5p.json").versions
    assert [version.commit.short for version in versions] == [moved]


def test_renames_of_tests_are_not_guessed(project):
    project.save({"old name": count(2)})
    project.save({"new name": count(3)})
    assert steps(history(project)) == []


def test_what_is_not_committed_comes_last(project, capsys):
    project.save({"compiles": count(2)})
    assert len(history(project).history.versions) == 1
    project.write({"compiles": count(5)})
    assert steps(history(project)) == [("compiles", "not committed", 2, 5)]
    main(["history"])
    assert "not committed: 1 worse" in capsys.readouterr().out
    project.write(b"damaged")
    assert "cpu.json:1" in history(project).history.skipped[0].why


def test_since_begins_with_the_state_at_that_time(project):
    first = project.save({"compiles": count(2)})
    project.save({"compiles": count(3)})
    project.git("tag", "v1.0")
    third = project.save({"compiles": count(4)})
    project.minutes += 3 * 1440
    fourth = project.save({"compiles": count(5)})
    assert [step[1] for step in steps(history(project, "v1.0"))] == [third, fourth]
    assert [step[1] for step in steps(history(project, "2026-01-03"))] == [fourth]
    assert len(history(project, first).history.versions) == 4
    assert len(history(project, "2026-02-01").history.versions) == 1
    with pytest.raises(HistoryError, match="--since last week: neither a revision that git knows nor a day"):
        history(project, "last week")


def test_a_pattern_and_kinds_choose_what_is_followed(project, capsys):
    for value in (2, 3):
        project.save(
            {"compiles": count(value), "traces": count(value), "seconds": Entry(value, "s", "info", "compiled")}
        )
    main(["history", "baselines/cpu.json", "trac*"])
    output = capsys.readouterr().out
    assert "1 of 1 metric moved" in output
    assert "  compiles" not in output
    main(["history", "baselines"])
    assert "1 metric of other kinds left out: --kind info" in capsys.readouterr().out
    main(["history", "baselines", "--metrics", "1"])
    assert "and 1 more that moved less: --metrics 2 shows them all" in capsys.readouterr().out
    assert main(["history", "baselines", "no such metric"]) == 2
    assert "no metric was ever of this name and kind: no such metric" in capsys.readouterr().err


def test_subjects_do_nothing_to_the_terminal(project, capsys):
    project.save({"compiles": count(2)})
    project.save({"compiles": count(3)}, "\x1b[31mred\x07")
    main(["history"])
    output = capsys.readouterr().out
    assert "[31mred" in output
    assert "\x1b" not in output
    assert "\x07" not in output


def test_the_users_own_settings_of_git_change_nothing(project, monkeypatch, tmp_path):
    project.save({"compiles": count(2)})
    project.save({"compiles": count(3)})
    expected = steps(history(project))
    settings = tmp_path / "gitconfig"
    settings.write_text(
        "[log]\n follow = true\n date = relative\n decorate = full\n showSignature = true\n"
        "[core]\n quotePath = true\n pager = false\n[color]\n ui = always\n[diff]\n renames = copies\n"
        "[i18n]\n logOutputEncoding = latin1\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    assert steps(history(project)) == expected


def test_a_file_is_found_from_inside_the_repository_and_by_any_name(project, monkeypatch):
    hash = project.save({"compiles": count(2)}, path="sub folder/[x] ü/cpu.json")
    folder = project.root / "sub folder" / "[x] ü"
    monkeypatch.chdir(folder)
    assert [version.commit.short for version in read_history(folder / "cpu.json").versions] == [hash]
    assert Repository(folder).prefix == "sub folder/[x] ü/"


# What cannot be read.


def refused(capsys, *arguments):
    """What the command says, having refused."""
    assert main(["history", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_a_file_that_no_commit_has_is_refused(project, capsys):
    project.commit("Empty")
    project.write({"compiles": count(2)})
    assert "no commit has this file: `git add` and commit it" in refused(capsys)
    assert "baselines/tpu.json: no such file, neither here nor in any commit" in refused(capsys, "baselines/tpu.json")
    assert "there is no folder" not in refused(capsys, "nowhere/cpu.json")
    assert "nowhere: no such folder" in refused(capsys, "nowhere/cpu.json")


def test_a_repository_without_a_commit_and_no_repository_are_refused(project, capsys, tmp_path, monkeypatch):
    project.write({"compiles": count(2)})
    assert "no commit yet: commit the baselines first" in refused(capsys)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "cpu.json").write_bytes((project.root / "baselines" / "cpu.json").read_bytes())
    monkeypatch.chdir(outside)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert "is not in a git repository" in refused(capsys, "cpu.json")


def test_without_git_that_is_said(project, capsys, monkeypatch):
    project.save({"compiles": count(2)})
    monkeypatch.setenv("PATH", "")
    assert "git is not installed, or not on the PATH" in refused(capsys)


def test_of_a_shallow_clone_it_is_said_how_to_fetch_the_rest(project, capsys, tmp_path, monkeypatch):
    for value in (2, 3, 4):
        project.save({"compiles": count(value)})
    clone = tmp_path / "clone"
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=2", f"file://{project.root}", str(clone)], check=True, capture_output=True
    )
    monkeypatch.chdir(clone)
    assert main(["history"]) == 0
    output = capsys.readouterr().out
    assert "2 versions" in output
    assert "this clone is shallow" in output
    assert "git fetch --unshallow" in output


def test_a_calibration_is_not_followed(project, capsys):
    project.save({"compiles": count(2)}, path="baselines/calibration-cpu.json")
    assert "a calibration, and no baselines" in refused(capsys, "baselines/calibration-cpu.json")
    assert "no baseline file in this folder" in refused(capsys)


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5"])
def test_metrics_must_be_a_whole_number_from_1_on(capsys, number):
    with pytest.raises(SystemExit):
        main(["history", "--metrics", number])
    assert "--metrics: needs a whole number from 1 on" in capsys.readouterr().err


# How it is shown.


def test_a_sparkline_has_a_letter_for_each_version():
    entries = [count(value) if value is not None else None for value in (None, 1, 1, 4, 8, None, 8)]
    assert sparkline(entries) == " ▁▁▄█ █"
    assert sparkline([count(3)] * 3, LETTERS) == "---"
    assert len(sparkline([count(value) for value in range(500)])) <= 40
    assert sparkline([ratio(-1.7e308, 0), ratio(1.7e308, 0)]) == "▁█"


def test_output_that_has_no_blocks_gets_letters(project):
    for value in (2, 3):
        project.save({"compiles": count(value)})
    command = [sys.executable, "-m", "perfsuite", "history"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert " _#  " in done.stdout


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


def test_a_page_that_cannot_be_written_is_refused_before_the_history_is_read(project, capsys):
    project.save({"compiles": count(2)})
    assert "is a folder: name a file in it, baselines/history.html" in refused(capsys, "--out", "baselines")
    assert "there is no folder nowhere" in refused(capsys, "--out", "nowhere/page.html")


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


def test_a_commit_is_named_with_what_there_is_of_it(project):
    hash = project.save({"compiles": count(2)}, "Subject")
    (version,) = history(project).history.versions
    assert title_of(version.commit) == f"{hash} (2026-01-01, Subject)"


def test_every_commit_of_a_long_history_is_read_once(project, monkeypatch):
    """Entries that no save changed are decoded once, and git is asked as often for a hundred commits as for two."""
    from perfsuite.history import git

    calls = itertools.count()
    run = subprocess.run

    def counted(*arguments, **keywords):
        next(calls)
        return run(*arguments, **keywords)

    for value in range(12):
        project.save({"compiles": count(value // 6)})
    monkeypatch.setattr(git.subprocess, "run", counted)
    read_history(project.root / "baselines" / "cpu.json")
    assert next(calls) < 10


def test_levels_are_medians_of_what_is_on_either_side():
    values = [1.0, 1.01, 0.99, 1.0, 1.01, 1.21, 1.2, 1.19, 1.2, 1.21]
    (step,) = steps_of(ratios(values))
    assert (step.version, step.before, step.after) == (5, 1.0, 1.2)
    assert math.isclose(step.change, 0.2)
