"""The search for the first new step, over rows and over histories with merges, with steps that cannot be tried."""

import math
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.git_project import GitProject

from perfsuite.bisecting.graph import Graph
from perfsuite.bisecting.search import search


@st.composite
def histories(draw):
    """A graph with one newest step, the steps that are new (with all that comes after them), and those to be skipped."""
    size = draw(st.integers(1, 24))
    parents = {}
    for place in range(size):
        before = list(parents)[-6:]
        chosen = draw(st.lists(st.sampled_from(before), max_size=3, unique=True)) if before else []
        parents[f"s{place}"] = tuple(chosen)
    loose = [step for step in parents if not any(step in each for each in parents.values())]
    parents["newest"] = tuple(loose)
    seeds = set(draw(st.lists(st.sampled_from(list(parents)), max_size=4))) | {"newest"}
    new = set()
    for step, before in parents.items():
        if step in seeds or new & set(before):
            new.add(step)
    skipped = set(draw(st.lists(st.sampled_from(list(parents)), max_size=size, unique=True))) - {"newest"}
    return Graph(parents), new, skipped


def searched(graph, new, skipped, newest="newest"):
    asked = []

    def ask(step, suspects):
        assert step not in asked
        asked.append(step)
        return "skipped" if step in skipped else "new" if step in new else "old"

    return search(graph, newest, ask), asked


@given(histories())
def test_the_first_new_step_is_among_the_suspects(history):
    graph, new, skipped = history
    suspects, _ = searched(graph, new, skipped)
    first = {step for step in new if not new & set(graph.parents[step])}
    assert first & set(suspects)
    if len(suspects) == 1:
        assert suspects[0] in first


@given(histories())
def test_a_suspect_that_could_be_tried_is_the_newest_of_them(history):
    """The range is as small as the steps that could be tried allow: all of its others were skipped."""
    graph, new, skipped = history
    suspects, asked = searched(graph, new, skipped)
    *others, last = suspects
    assert set(others) <= skipped
    assert set(asked) & skipped >= set(others)
    assert last in new


@given(histories())
def test_without_skipped_steps_there_is_one_answer(history):
    graph, new, _ = history
    suspects, asked = searched(graph, new, set())
    assert len(suspects) == 1
    assert len(asked) < len(graph.parents)


@given(st.integers(1, 300), st.data())
def test_a_row_of_n_takes_log2_n_tries(size, data):
    first = data.draw(st.integers(0, size - 1))
    steps = [str(place) for place in range(size)]
    suspects, asked = searched(Graph.chain(steps), set(steps[first:]), set(), newest=steps[-1])
    assert suspects == [str(first)]
    assert len(asked) <= math.ceil(math.log2(size))


@pytest.mark.parametrize("first", [0, 31, 63])
def test_64_commits_take_six(first):
    steps = [str(place) for place in range(64)]
    assert len(searched(Graph.chain(steps), set(steps[first:]), set(), newest="63")[1]) == 6


@pytest.mark.parametrize(("start", "end"), [(60, 100), (20, 140)])
def test_a_row_of_broken_steps_is_left_in_a_few_tries(start, end):
    """It does not try one neighbour after the other: 8 tries is the least for 160 steps in a row."""
    steps = [str(place) for place in range(160)]
    broken = set(steps[start:end])
    for first in [*range(0, start, 7), *range(end + 1, 160, 7)]:
        suspects, asked = searched(Graph.chain(steps), set(steps[first:]), broken, newest=steps[-1])
        assert suspects == [str(first)]
        assert len(asked) <= 16


def graph_of(project, good):
    """The commits after `good`."""
    lines = project.git("rev-list", "--topo-order", "--reverse", "--parents", "HEAD", f"^{good}").splitlines()
    parents = {commit: before for commit, *before in map(str.split, lines)}
    return Graph({commit: tuple(each for each in before if each in parents) for commit, before in parents.items()})


def test_the_first_try_in_a_history_with_merges_is_gits_own(tmp_path):
    """The two may choose other ones of equal worth: what counts is the number of commits that the answers leave."""
    project = GitProject(tmp_path)
    project.commit("the good one")
    for turn in range(4):
        project.git("checkout", "-q", "-b", f"side{turn}")
        for place in range(turn + 2):
            project.commit(f"side {turn} {place}")
        project.git("checkout", "-q", "main")
        project.commit(f"main {turn}")
        project.git("merge", "-q", "--no-ff", "-m", f"merge {turn}", f"side{turn}")
    good = project.git("rev-list", "--max-parents=0", "HEAD").strip()
    graph = graph_of(project, good)
    head = project.git("rev-parse", "HEAD").strip()
    inside = graph.parents

    def worth(commit):
        before = len(project.git("rev-list", commit, f"^{good}").split())
        return min(before, len(inside) - before)

    chosen = graph.next_step((), {head}, ())
    assert worth(chosen) == worth(project.git("rev-list", "--bisect", "HEAD", f"^{good}").strip())


def test_git_bisect_finds_the_same_commit(tmp_path):
    """On a history with a merge, the commit of the merged branch that did it, and not the merge."""
    project = GitProject(tmp_path)
    steps = tmp_path / "value"
    steps.write_text("good")
    project.commit("start")
    good = project.git("rev-parse", "HEAD").strip()
    project.git("checkout", "-q", "-b", "side")
    made = []
    for place in range(4):
        steps.write_text("bad" if place >= 2 else f"good {place}")
        made.append(project.commit(f"side {place}"))
    project.git("checkout", "-q", "main")
    (tmp_path / "other").write_text("x")
    project.commit("main")
    project.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    graph = graph_of(project, good)
    new = {commit for commit in graph.parents if project.git("show", f"{commit}:value") == "bad"}
    suspects, _ = searched(graph, new, set(), newest=project.git("rev-parse", "HEAD").strip())
    project.git("bisect", "start", "HEAD", good)
    said = subprocess.run(
        ["git", "bisect", "run", "sh", "-c", "! grep -q bad value"], cwd=tmp_path, capture_output=True, text=True
    ).stdout
    assert f"{suspects[0]} is the first bad commit" in said
    assert suspects[0].startswith(made[2])
