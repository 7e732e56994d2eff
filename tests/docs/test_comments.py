"""What the CI systems are told through their own tools: each script runs with a `gh` or `curl` that writes down what it
was asked.
"""

import json
import os
import re
import shlex
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml
from support.markdown_blocks import ROOT

ACTION = ROOT / ".github/actions/pull-request-comment"
GITLAB = ROOT / ".gitlab/perf-against.yml"
EXAMPLE = ROOT / ".github/examples/perf-against.yml"

FAKE = """#!{python}
import json, os, sys
asked = sys.argv[1:]
bodies = [part.partition("@")[2] for part in asked if part.startswith("body@") or part.startswith("body=@")]
body = open(bodies[0], encoding="utf-8").read() if bodies else None
with open(os.environ["ASKED"], "a", encoding="utf-8") as file:
    file.write(json.dumps([asked, body]) + "\\n")
if os.environ.get("REFUSED") == "1":
    sys.exit("HTTP 403")
if not bodies:
    answers = json.loads(os.environ.get("PAGES", "{{}}"))
    print(next((answers[end] for end in answers if asked[-1].endswith(end)), os.environ.get("ANSWER", "")))
"""


@pytest.fixture
def asking(tmp_path, monkeypatch):
    """Runs a script with tools that write down what they are asked, and answer what the test says."""
    for name in ("gh", "curl"):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(FAKE.format(python=sys.executable))
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "bin/python").symlink_to(sys.executable)

    def run(script, **environment):
        given = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "ASKED": str(tmp_path / "asked"), **environment}
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=given, capture_output=True, text=True)
        lines = (tmp_path / "asked").read_text(encoding="utf-8").splitlines() if (tmp_path / "asked").exists() else []
        return SimpleNamespace(
            said=done.stdout + done.stderr, status=done.returncode, asked=[json.loads(x) for x in lines]
        )

    return run


@pytest.fixture
def comment(asking, tmp_path):
    """Runs the composite action, with its inputs as GitHub gives them."""
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    (step,) = action["runs"]["steps"]
    (tmp_path / "against.md").write_text("| a table |\n", encoding="utf-8")

    def run(answer="", refused="", **inputs):
        given = {"file": "against.md", "name": "perf-against", "number": "7", "token": "t"} | inputs
        assert set(given) == set(action["inputs"])
        names = {name: re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value)[1] for name, value in step["env"].items()}
        environment = {name: given[value] for name, value in names.items()}
        fixed = {"GITHUB_ACTION_PATH": str(ACTION), "GITHUB_REPOSITORY": "o/r", "ANSWER": answer, "REFUSED": refused}
        return asking(step["run"], **environment, **fixed)

    return run


def test_a_pull_request_without_a_comment_gets_one(comment):
    done = comment()
    assert done.status == 0
    (_, (asked, body)) = done.asked
    assert asked[:5] == ["api", "--silent", "--method", "POST", "repos/o/r/issues/7/comments"]
    assert body == "<!-- perfsuite: perf-against -->\n| a table |\n"


def test_the_comment_that_is_there_is_updated(comment):
    done = comment(answer="42\n43")
    ((looked, _), (asked, body)) = done.asked
    assert "--paginate" in looked
    assert asked[:5] == ["api", "--silent", "--method", "PATCH", "repos/o/r/issues/comments/42"]
    assert "a table" in body


def test_a_report_that_is_too_long_is_cut_at_a_line(comment, tmp_path):
    (tmp_path / "against.md").write_text("é" * 40 + "\n" + ("ä" * 98 + "\n") * 1000, encoding="utf-8")
    body = comment().asked[-1][1]
    assert len(body.encode()) < 61_000
    assert set(body.splitlines()[2:-2]) == {"ä" * 98}
    assert body.splitlines()[-1].startswith("(cut: ")


def test_a_fork_without_the_right_to_write_is_a_warning(comment):
    done = comment(refused="1")
    assert done.status == 0
    assert "::warning title=pull-request-comment::no comment: GitHub refused it" in done.said
    assert "pull-requests: write" in done.said


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"file": "none.md"}, "file: there is no file 'none.md'"),
        ({"number": ""}, "number: must be the number"),
        ({"number": "7/x"}, "number: must be the number of a pull request, got '7/x'"),
    ],
)
def test_a_wrong_input_is_an_error_that_names_it(comment, inputs, said):
    done = comment(**inputs)
    assert (done.status, done.asked) == (1, [])
    assert f"::error title=pull-request-comment::{said}" in done.said


def test_the_example_uses_the_action_with_inputs_that_it_has():
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    (job,) = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["jobs"].values()
    (step,) = (each for each in job["steps"] if each.get("uses", "").startswith("./"))
    assert ROOT / step["uses"] == ACTION
    needed = {name for name, one in action["inputs"].items() if one.get("required")}
    assert needed <= set(step["with"]) <= set(action["inputs"])


OF_GITLAB = {"CI_API_V4_URL": "https://g/api/v4", "CI_PROJECT_ID": "3", "CI_MERGE_REQUEST_IID": "7", "PERF_TOKEN": "t"}
NOTES = "https://g/api/v4/projects/3/merge_requests/7/notes"


@pytest.fixture
def note(asking, tmp_path):
    (job,) = yaml.safe_load(GITLAB.read_text(encoding="utf-8")).values()
    (script,) = job["after_script"]
    (tmp_path / "against.md").write_text("| a table |\n", encoding="utf-8")

    def run(*pages, **changes):
        answers = {"/user": '{"id": 5}'} | {f"&page={n}": json.dumps(page) for n, page in enumerate([*pages, []], 1)}
        return asking(script, PAGES=json.dumps(answers), **(OF_GITLAB | changes))

    return run


def a_note(id, body, author=5):
    return {"id": id, "body": body, "author": {"id": author}}


def test_a_merge_request_gets_one_note_that_is_updated(note):
    other, marked = a_note(1, "hello"), "<!-- perfsuite: perf-against -->\nold"
    first, again = note([other]), note([other], [a_note(41, marked, author=6), a_note(42, marked)])
    assert first.status == again.status == 0
    created, updated = first.asked[-1], again.asked[-1]
    assert (created[0][-1], updated[0][-1]) == (NOTES, f"{NOTES}/42")
    assert "POST" in created[0]
    assert "PUT" in updated[0]
    assert created[1] == updated[1] == "<!-- perfsuite: perf-against -->\n| a table |\n"


def test_a_note_that_somebody_else_marked_is_left_alone(note):
    done = note([a_note(41, "<!-- perfsuite: perf-against -->\nold", author=6)])
    assert "POST" in done.asked[-1][0]


def test_a_system_that_refuses_to_answer_gets_no_second_note(note):
    done = note(REFUSED="1")
    assert (done.status, len(done.asked)) == (1, 1)
    assert "403" in done.said


@pytest.mark.parametrize("missing", ["PERF_TOKEN", "against.md"])
def test_without_a_token_or_a_table_there_is_no_note_and_a_line_says_why(note, tmp_path, missing):
    if missing == "against.md":
        (tmp_path / missing).unlink()
    done = note(**({"PERF_TOKEN": ""} if missing == "PERF_TOKEN" else {}))
    assert (done.status, done.asked) == (0, [])
    assert done.said.startswith("no note: ")
    assert missing in done.said


@pytest.mark.parametrize(("open_one", "command"), [("", "create"), ("5", "comment")])
def test_a_nightly_run_that_fails_is_said_in_one_issue(asking, open_one, command):
    script = f"bash {shlex.quote(str(ROOT / '.ci/one_issue'))}"
    done = asking(script, ANSWER=open_one, JAX="failure", FUZZ="success", AUDIT="success", RUN="https://g/runs/1")
    assert done.status == 0
    asked = done.asked[-1][0]
    assert asked[:2] == ["issue", command]
    assert (open_one in asked) == bool(open_one)
    assert any(
        "nightly wheels: failure; fuzzed readers: success; pip-audit: success. https://g/runs/1" in part
        for part in asked
    )


def test_only_a_failed_night_opens_an_issue():
    nightly = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8"))["jobs"]
    assert nightly["issue"]["if"] == "${{ failure() }}"
    assert set(nightly["issue"]["needs"]) == set(nightly) - {"issue"}
    assert [name for name, job in nightly.items() if "write" in job.get("permissions", {}).values()] == ["issue"]
