"""`history.reading`: the versions of a file over its commits, and the commits that cannot be read."""

import itertools
import subprocess

import pytest
from support.git_project import TEST, GitProject, count, followed, moved_steps, ratio, with_versions

from perfsuite import git
from perfsuite.commands import main
from perfsuite.gate.baseline import Baselines
from perfsuite.git import Commit, Repository
from perfsuite.history import HistoryError
from perfsuite.history.reading import History, Version, read_history, series_of


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


def test_commits_that_cannot_be_read_are_skipped_and_named_with_the_reason(project, capsys):
    project.save({"compiles": count(2)}, "Good")
    older = project.save(b'{\n "schema": 1\n}\n', "Of an older perfsuite")
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
    assert moved_steps(followed(project)) == [("compiles", last, 2, 3)]


def test_commits_that_are_skipped_for_the_same_reason_are_one_line_with_the_last_of_them(project, capsys):
    for number in range(12):
        older = project.save(b'{\n "schema": 1,\n "device": "%d"\n}\n' % number, f"Older {number}")
    merged = project.save(b"<<<<<<< HEAD\n", "Half merged")
    project.save({"compiles": count(3)}, "Good")
    assert main(["history"]) == 0
    many, one = [line for line in capsys.readouterr().out.splitlines() if "skipped" in line]
    assert many == (
        f"  skipped 12 commits, the last of them {older} (2026-01-01, Older 11): "
        "line 2: written by an older perfsuite (schema 1, this one reads 2)"
    )
    assert one.startswith(f"  skipped {merged} (2026-01-01, Half merged): ")


def test_uncommitted_baselines_come_last(project, capsys):
    project.save({"compiles": count(2)})
    assert len(followed(project).history.versions) == 1
    project.write({"compiles": count(5)})
    assert moved_steps(followed(project)) == [("compiles", "not committed", 2, 5)]
    main(["history"])
    assert "not committed: 1 worse" in capsys.readouterr().out
    project.write(b"damaged")
    assert "cpu.json:1" in followed(project).history.skipped[0].why


def test_since_begins_with_the_state_at_that_time(project):
    first = project.save({"compiles": count(2)})
    project.save({"compiles": count(3)})
    project.git("tag", "v1.0")
    third = project.save({"compiles": count(4)})
    project.minutes += 3 * 1440
    fourth = project.save({"compiles": count(5)})
    assert [step[1] for step in moved_steps(followed(project, "v1.0"))] == [third, fourth]
    assert [step[1] for step in moved_steps(followed(project, "2026-01-03"))] == [fourth]
    assert len(followed(project, first).history.versions) == 4
    assert len(followed(project, "2026-02-01").history.versions) == 1
    with pytest.raises(HistoryError, match="--since last week: neither a revision that git knows nor a day"):
        followed(project, "last week")


def test_a_file_is_found_from_inside_the_repository_and_by_any_name(project, monkeypatch):
    hash = project.save({"compiles": count(2)}, path="sub folder/[x] ü/cpu.json")
    folder = project.root / "sub folder" / "[x] ü"
    monkeypatch.chdir(folder)
    assert [version.commit.short for version in read_history(folder / "cpu.json").versions] == [hash]
    assert Repository(folder).prefix == "sub folder/[x] ü/"


def test_every_commit_of_a_long_history_is_read_once(project, monkeypatch):
    """Entries that no save changed are decoded once, and git is asked as often for a hundred commits as for two."""
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


def test_a_metric_of_several_processors_is_a_series_for_each():
    def version(*entries):
        first, *others = entries
        beside = {entry.processor: {TEST: {"metric": entry}} for entry in others}
        return Version(Commit("", "", "", None, "", ""), Baselines("cpu", {TEST: {"metric": first}}, {}, beside))

    xeon, epyc, faster = (
        ratio(value, environment=with_versions(processor=processor))
        for value, processor in ((1, "Xeon"), (4, "EPYC"), (3, "EPYC"))
    )
    series = series_of(History("cpu.json", (version(xeon), version(xeon, epyc), version(faster))))
    assert {each.name: each.entries for each in series} == {
        "metric": (None, epyc, faster),
        "metric on Xeon": (xeon, xeon, None),
    }
    moved = series_of(History("cpu.json", (version(xeon), version(faster))))
    assert [(each.name, each.entries) for each in moved] == [("metric", (xeon, faster))]
