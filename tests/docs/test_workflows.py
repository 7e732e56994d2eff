"""The workflows in `.github`: they are read as GitHub reads them, and their commands take options that exist."""

import argparse
import collections
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from perfsuite.commands import against

ROOT = Path(__file__).parents[2]
CI = ROOT / ".github/workflows/ci.yml"
PERF = ROOT / ".github/examples/perf.yml"
WORKFLOWS = sorted((ROOT / ".github").glob("*/*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAMES = [path.stem for path in WORKFLOWS]


PINNED = re.compile(r"uses: ((?:actions|pypa)/[a-z/-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)")
"""GitHub's own actions, and PyPI's, by the hash of a commit: a tag can be moved to other code."""


def jobs(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]


def steps(path):
    return [step for job in jobs(path).values() for step in job["steps"]]


def commands(path, program):
    """The arguments of each call of a program in the workflow's scripts."""
    found = []
    for script in (step.get("run", "") for step in steps(path)):
        for line in script.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|;|\|", line):
                words = shlex.split(part, comments=True)
                if words and Path(words[0]).name == program:
                    found.append(words[1:])
    return found


def uses(path, action):
    return [step for step in steps(path) if step.get("uses", "").startswith(f"{action}@")]


def test_there_are_the_workflows_that_the_documentation_names():
    assert {"ci", "docs", "nightly", "release", "perf", "perf-against", "perf-nightly-tpu", "perf-baselines"} <= set(
        NAMES
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=NAMES)
def test_a_workflow_is_one_that_github_takes(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    # YAML 1.1 takes a bare `on` for a truth value.
    assert set(workflow) <= {"name", True, "permissions", "concurrency", "env", "jobs"}
    assert workflow["permissions"], "no more rights than are needed"
    for job in workflow["jobs"].values():
        assert 0 < job["timeout-minutes"] <= 300
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert set(step) <= {"uses", "with", "run", "env", "if", "name", "id"}
    for said in re.findall(r"\$\{\{(.*?)\}\}", path.read_text(encoding="utf-8")):
        context = re.match(r" !?(\w+)", said)[1]
        assert context in ("matrix", "github", "runner", "inputs", "needs", "vars", "cancelled", "failure"), said


def test_every_action_is_pinned_and_in_all_files_to_the_same_commit():
    """Dependabot moves the pins of `.github/workflows` alone: the others have to follow."""
    pins = collections.defaultdict(set)
    for path in WORKFLOWS:
        for line in re.findall(r"uses: .*", path.read_text(encoding="utf-8")):
            if not line.startswith("uses: ./"):
                found = PINNED.fullmatch(line)
                assert found, f"{path.name}: {line}"
                pins["/".join(found[1].split("/")[:2])].add(found.groups()[1:])
    assert {action: len(versions) for action, versions in pins.items()} == dict.fromkeys(pins, 1)
    assert len(pins) >= 6


@pytest.mark.parametrize(
    "line", ["actions/checkout@v6", f"actions/checkout@{'a' * 40}", f"other/checkout@{'a' * 40} # v1.0.0"]
)
def test_a_tag_a_pin_without_its_version_and_an_action_of_somebody_else_are_seen(line):
    assert not PINNED.fullmatch(f"uses: {line}")


@pytest.mark.parametrize("path", WORKFLOWS, ids=NAMES)
def test_what_others_wrote_is_no_part_of_a_script(path):
    # What stands in ${{ }} is put into the script's text before a shell reads it.
    for step in steps(path):
        found = re.findall(r"\$\{\{ *(\S+)", step.get("run", ""))
        assert all(name.startswith("matrix.") for name in found)


@pytest.mark.parametrize("path", WORKFLOWS, ids=NAMES)
def test_its_pytest_commands_have_options_that_exist(path, pytester):
    for arguments in commands(path, "pytest"):
        options = [each for each in arguments if not (ROOT / each).exists()]
        concrete = [re.sub(r"\$\w+|\$\{\{.*?\}\}", "small", argument) for argument in options]
        config = pytester.parseconfig(*concrete)
        assert config.args == [str(pytester.path)], "no word was taken for a file"


def test_an_option_that_does_not_exist_would_be_seen(pytester):
    with pytest.raises(pytest.UsageError, match="--perf-nothing"):
        pytester.parseconfig("--perf-nothing")


@pytest.mark.parametrize("path", WORKFLOWS, ids=NAMES)
def test_what_it_installs_can_be_installed(path):
    extras = set(PROJECT["optional-dependencies"])
    for _, *arguments in (each for each in commands(path, "pip") if each[0] == "install"):
        for argument in arguments:
            if argument.startswith("perfsuite["):
                assert Requirement(argument).extras <= extras
            if argument.startswith(".["):
                assert Requirement(f"perfsuite{argument[1:]}").extras <= extras


@pytest.mark.parametrize("name", ["perf", "perf-nightly-tpu", "perf-baselines"])
def test_an_example_writes_a_report_and_uploads_it_also_where_a_gate_failed(name):
    (path,) = (each for each in WORKFLOWS if each.stem == name)
    (arguments,) = commands(path, "pytest")
    (upload,) = uses(path, "actions/upload-artifact")
    assert f"--perf-report={upload['with']['path']}" in arguments
    if name != "perf-baselines":
        assert upload["if"] == "${{ !cancelled() }}"
    assert any("perfsuite[report,tpu]" in " ".join(words) for words in commands(path, "pip"))


def test_the_gate_keeps_what_compilers_said_also_of_a_run_that_failed():
    path = PERF
    (restore,), (save,) = uses(path, "actions/cache/restore"), uses(path, "actions/cache/save")
    assert save["if"] == "${{ !cancelled() }}"
    assert save["with"]["key"] == restore["with"]["key"]
    assert save["with"]["path"] == restore["with"]["path"] == ".pytest_cache"
    assert restore["with"]["key"].startswith(restore["with"]["restore-keys"])


def test_the_nightly_run_is_on_a_tpu_and_in_full_size():
    path = ROOT / ".github/examples/perf-nightly-tpu.yml"
    (arguments,) = commands(path, "pytest")
    assert "--perf-size=full" in arguments
    (job,) = jobs(path).values()
    assert "self-hosted" in job["runs-on"]
    assert {"JAX_PLATFORMS": "tpu"} in [step.get("env") for step in job["steps"]]


def test_baselines_are_recorded_by_a_pull_request():
    path = ROOT / ".github/examples/perf-baselines.yml"
    (arguments,) = commands(path, "pytest")
    assert "--perf-save" in arguments
    assert ["pr", "create"] in [words[:2] for words in commands(path, "gh")]


def test_a_pull_request_is_compared_with_its_base_and_gets_the_table_also_where_something_is_worse():
    path = ROOT / ".github/examples/perf-against.yml"
    (given,) = commands(path, "perfsuite")
    parser = argparse.ArgumentParser()
    against.add_arguments(parser.add_subparsers().add_parser("against"))
    options = parser.parse_args(given)
    assert (options.revision, str(options.markdown)) == ("origin/$BASE", "against.md")
    later = [step for step in steps(path) if "against." in f"{step.get('run')}{step.get('with')}"]
    assert [step.get("if") for step in later] == [None, *["${{ !cancelled() }}"] * 2]
    (checkout,) = uses(path, "actions/checkout")
    assert checkout["with"]["fetch-depth"] == 0


def test_the_matrix_of_this_repository_has_every_python_and_every_jax_that_is_promised():
    matrix = {name: job["strategy"]["matrix"] for name, job in jobs(CI).items() if "strategy" in job}
    pythons = ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    assert matrix["check"] == {"python": pythons}
    assert matrix["older-jax"] == {"python": pythons, "jax": ["0.10.0", "0.10.1"]}
    (lowest,) = (step["run"] for step in jobs(CI)["lowest"]["steps"] if "lowest-direct" in step.get("run", ""))
    assert '.[dev]"' in lowest
    assert {"macos-15", "ubuntu-24.04-arm"} == set(matrix["arm64"]["machine"])
    (jax,) = (Requirement(each) for each in PROJECT["dependencies"] if each.startswith("jax"))
    assert "0.10.0" in jax.specifier
    assert "0.9.2" not in jax.specifier
