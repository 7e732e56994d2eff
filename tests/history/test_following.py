"""`history.following`: what moved in a history of saves, at which commit, and with which versions."""

import numpy as np
import pytest
from support.git_project import HERE, GitProject, count, followed, moved_steps, ratio, with_versions

from perfsuite.commands import main
from perfsuite.gate.baseline import Entry
from perfsuite.measure.metric import Interval


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository, which is the current folder."""
    return GitProject.here(tmp_path / "project", monkeypatch)


NOISE = 0.02
"""Of the simulated ratios, from save to save: as much as a machine that is not quiet has."""


def noisy(seed, length=20, noise=NOISE):
    """A ratio of 1.2 and its noise."""
    return 1.2 * np.exp(np.random.default_rng(seed).normal(size=length) * noise)


def test_a_step_of_12_percent_in_a_noisy_ratio_is_found_at_its_commit_with_the_version_that_came_with_it(project):
    values = noisy(1)
    values[12:] *= 1.12
    other = with_versions(jax="0.11.0")
    hashes = [
        project.save({"ratio": ratio(float(value), 0.01, HERE if place < 12 else other)}, f"Save {place}")
        for place, value in enumerate(values)
    ]
    following = followed(project)
    ((name, commit, before, after),) = moved_steps(following)
    assert (name, commit) == ("ratio", hashes[12])
    assert after / before == pytest.approx(1.12, abs=0.02)
    (of_commit,) = following.commits
    assert of_commit.versions == (("jax 0.10.2 -> 0.11.0", 1),)
    assert (of_commit.commit.subject, of_commit.commit.author, of_commit.commit.day) == ("Save 12", "Ada", "2026-01-01")


def test_no_step_is_searched_across_another_processor_and_a_note_says_so(project, capsys):
    other = with_versions(processor="EPYC")
    for value, environment in [(100.0, HERE), (101.0, HERE), (900.0, other), (905.0, other)]:
        project.save({"step": Entry(value, "us", "time", "measured", environment, Interval(value - 5, value + 5))})
    following = followed(project)
    assert moved_steps(following) == []
    assert [(version, count) for version, _, count in following.breaks] == [(2, 1)]
    main(["history"])
    assert "host processor differs (Xeon, now EPYC)" in capsys.readouterr().out


def test_renames_of_tests_are_not_guessed(project):
    project.save({"old name": count(2)})
    project.save({"new name": count(3)})
    assert moved_steps(followed(project)) == []
