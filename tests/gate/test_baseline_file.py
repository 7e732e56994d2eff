"""`gate.baseline_file`: its text can be read as a diff; a file is read whole or refused, and never half written."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from support.closed_folders import closed

import perfsuite
from perfsuite.gate.baseline import Baselines, Entry, Revision
from perfsuite.gate.baseline_file import (
    BaselineError,
    LocatedError,
    check_writable,
    encode,
    folder_for,
    folder_here,
    load,
    parse,
    render,
    save,
)
from perfsuite.gate.environment import Environment
from perfsuite.measure.metric import Interval

OWN_FILES = sorted((Path(perfsuite.__path__[0]).parent / "baselines").rglob("*.json"))
HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.2", equinox="0.13.8")
STEP = "tests/perf/test_steps.py::test_flat"

COUNT = Entry(3, "compiles", "count", "measured", HERE)
RATIO = Entry(1.06, "x", "ratio", "measured", HERE, Interval(1.05, 1.08), 300, label="flat_step/step ratio to ready")
METRICS = {
    STEP: {"compiles": COUNT, "compare ratio to ready": RATIO},
    "reported/step": {"time": Entry(133.5, "ms", "time", "reported", source="A paper")},
}

TEXT = f"""\
{{
 "schema": 3,
 "device": "cpu",
 "environments": {{
  "{HERE.id}": {{"device_count": 1, "device_kind": "cpu", "equinox": "0.13.8", "flax": null, "jax": "0.10.2", \
"jaxlib": "0.10.2", "libtpu": null, "optax": null, "processor": "Xeon", "python": "3.11.7", "x64": false, "xla_flags": ""}}
 }},
 "metrics": {{
  "reported/step": {{
   "time": {{"value": 133.5, "unit": "ms", "kind": "time", "provenance": "reported", "source": "A paper"}}
  }},
  "tests/perf/test_steps.py::test_flat": {{
   "compare ratio to ready": {{"label": "flat_step/step ratio to ready", "value": 1.06, "unit": "x", "kind": "ratio", \
"provenance": "measured", "environment": "{HERE.id}", "low": 1.05, "high": 1.08, "samples": 300}},
   "compiles": {{"value": 3, "unit": "compiles", "kind": "count", "provenance": "measured", \
"environment": "{HERE.id}"}}
  }}
 }}
}}
"""


def test_a_file_has_one_metric_a_line_and_sorted_keys():
    assert render(Baselines("cpu", METRICS)) == TEXT


def test_a_revision_stands_once_a_test():
    revisions = {STEP: Revision("a" * 40), "tests/test_a.py::test_b": Revision("b" * 40, dirty=True)}
    baselines = Baselines("cpu", METRICS, revisions)
    lines = render(baselines).splitlines()
    assert lines[6:10] == [
        ' "revisions": {',
        '  "tests/perf/test_steps.py::test_flat": {"commit": "' + "a" * 40 + '"},',
        '  "tests/test_a.py::test_b": {"commit": "' + "b" * 40 + '", "dirty": true}',
        " },",
    ]
    assert parse("\n".join(lines)) == baselines


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ('{"commit": 3}', "commit must be of type str"),
        ('{"commit": "a", "dirty": 1}', "dirty must be true or false"),
        ('{"dirty": true}', "lacks commit"),
        ('{"commit": "a", "branch": "b"}', "unknown key 'branch'"),
        ("[]", "must be an object"),
    ],
)
def test_a_damaged_revision_is_refused_with_its_line(fields, words):
    text = TEXT.replace(' "metrics": {', f' "revisions": {{\n  "test": {fields}\n }},\n "metrics": {{')
    with pytest.raises(LocatedError, match=words) as caught:
        parse(text)
    assert caught.value.line == 8


def test_the_order_in_which_metrics_were_made_does_not_show():
    backwards = {test: dict(reversed(entries.items())) for test, entries in reversed(METRICS.items())}
    assert render(Baselines("cpu", backwards)) == TEXT


def test_names_are_written_as_they_are_read():
    assert '"größe of 漢字": {' in render(Baselines("cpu", {"größe of 漢字": {"a": COUNT}}))


def test_a_file_without_metrics_is_short():
    assert render(Baselines("cpu")).splitlines()[2:] == [
        ' "device": "cpu",',
        ' "environments": {},',
        ' "metrics": {}',
        "}",
    ]


def test_every_optional_field_round_trips():
    entry = Entry(40, "calls", "count", "measured", HERE, Interval(39, 41), 5, "higher", detail={"b 'é'": 1, "a": 39})
    baselines = Baselines("cpu", {"t[é-x::y]": {"n": entry}})
    assert parse(encode(baselines).decode()) == baselines


def test_control_characters_of_names_are_read_as_python_writes_them():
    entry = Entry(40, "calls", "count", "measured", HERE, detail={"b\n": 1})
    written = parse(encode(Baselines("cpu", {"t[\u2028-x]\n": {"n\ud800": entry}})).decode())
    assert written == Baselines("cpu", {r"t[\u2028-x]\n": {r"n\ud800": dataclasses.replace(entry, detail={r"b\n": 1})}})


@pytest.mark.parametrize("layout", [{"indent": 4}, {"separators": (",", ":")}])
def test_another_layout_of_the_same_json_is_read(layout):
    text = json.dumps(json.loads(TEXT), **layout).replace("\n", "\r\n")
    assert parse(text) == Baselines("cpu", METRICS)


@pytest.mark.parametrize("file", OWN_FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_projects_own_files_are_as_the_writer_writes_them(file):
    assert encode(parse(file.read_text(encoding="utf-8"), file.stem)) == file.read_bytes()


def test_the_tpu_v5e_file_has_what_the_seed_document_reports():
    (file,) = (file for file in OWN_FILES if file.match("baselines/tpu-v5e.json"))
    metrics = parse(file.read_text(encoding="utf-8"))
    step = "reported/bert-base-train-step[no dropout]"
    assert metrics.get(step, "filter_jit/step time").value == 133.5
    assert metrics.get(step, "manual_jit/step time").value == 104.7
    dropout = metrics.get("reported/bert-base-train-step[make_train_step, dropout]", "make_train_step/overhead")
    assert (dropout.value, dropout.unit, dropout.gates) == (31.6, "ms", False)
    assert "filter_jit Overhead in BERT Training, TPU v5e" in dropout.source


# A file that is not as it was written.


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (TEXT, "", 1, ["is empty"]),
        (TEXT, "null", 1, ["no `schema`", "git checkout"]),
        (TEXT, "[]", 1, ["no `schema`"]),
        (' "device"', '<<<<<<< HEAD\n "device"', 3, ["unresolved merge conflict", "git checkout"]),
        ('  "reported/step"', '=======\n  "reported/step"', 8, ["unresolved merge conflict"]),
        (' "metrics"', '=======\r\n "metrics"', 7, ["unresolved merge conflict"]),
        (' "schema": 3', ' "schema": 99', 2, ["newer perfsuite (schema 99, this one reads 3): upgrade perfsuite"]),
        (' "schema": 3', ' "schema": 99, "new": []', 2, ["upgrade perfsuite"]),
        (' "schema": 3', ' "schema": 2', 2, ["older perfsuite (schema 2", "delete the file", "pytest --perf-save"]),
        (' "schema": 3,\n', "", 1, ["no `schema`"]),
        (' "schema": 3', ' "schema": true', 2, ["must be a whole number, got True"]),
        (' "schema": 3', ' "schema": "1"', 2, ["must be a whole number, got '1'"]),
        (' "device": "cpu",\n', "", 1, ["lacks device"]),
        ('"device": "cpu"', '"device": 3', 3, ["must be the name of a device"]),
        ('"device": "cpu"', '"device": "gpu"', 3, ["metrics of 'gpu'", "rename"]),
        ('"device": "cpu"', '"device": "cpu", "extra": 1', 3, ["unknown key 'extra'"]),
        ('"device_count": 1, ', "", 5, [HERE.id, "lacks device_count"]),
        ('"x64": false', '"x64": "no"', 5, ["x64 must be true or false"]),
        ('"x64": false', '"x64": false, "x": 1', 5, ["unknown keys: x"]),
        (
            f'  "{HERE.id}"',
            '  "00000000"',
            12,
            ["'compare ratio to ready' of", STEP, f"environment '{HERE.id}' is not among"],
        ),
        (f'"environment": "{HERE.id}"}}', '"environment": []}', 13, ["environment [] is not among"]),
        (f', "environment": "{HERE.id}"}}', "}", 13, ["must have the environment"]),
        ('"value": 133.5', '"value": NaN', 9, ["NaN is not a number that JSON knows"]),
        ('"value": 133.5', '"value": -Infinity', 9, ["-Infinity is not a number"]),
        ('"value": 133.5', '"value": 1e999', 9, ["'time' of 'reported/step'", "must be finite"]),
        ('"value": 133.5', '"value": ' + "9" * 400, 9, ["must be finite"]),
        ('"value": 133.5', '"value": ' + "9" * 5000, 9, ["digits"]),
        ('"value": 133.5', '"value": "133.5"', 9, ["must be a number, got '133.5'"]),
        ('"value": 133.5', '"value": [133.5]', 9, ["must be a number"]),
        ('"value": 133.5', '"value": 133.5, "value": 134', 9, ["'value' is here a second time, after line 9"]),
        ('"value": 133.5', '"value": null', 9, ["value is null"]),
        ('"value": 133.5', '"value": 01', 9, ["expecting ',' delimiter"]),
        ('"value": 133.5, ', "", 9, ["lacks value"]),
        ('"unit": "ms"', '"unit": 3', 9, ["unit must be of type str"]),
        ('"unit": "ms"', '"unit": "m\ts"', 9, ["control character"]),
        ('"unit": "ms"', '"unit": "m\\x"', 9, ["escape"]),
        ('"unit": "ms"', '"units": "ms"', 9, ["lacks unit"]),
        ('"unit": "ms"', '"unit": "ms", "colour": "red"', 9, ["unknown key 'colour'"]),
        ('"kind": "time"', '"kind": "speed"', 9, ["kind must be one of"]),
        ('"kind": "time"', '"kind": {"a": {}}', 9, ["kind must be one of"]),
        ('"provenance": "reported"', '"provenance": "heard"', 9, ["provenance must be one of"]),
        (', "source": "A paper"', "", 9, ["must name its document"]),
        ('"low": 1.05', '"low": 1.09', 12, ["empty or not a number"]),
        ('"low": 1.05, ', "", 12, ["low and high belong together"]),
        ('"low": 1.05', '"low": "small"', 12, ["low must be a number"]),
        ('"high": 1.08', '"high": 1e999', 12, ["high must be finite"]),
        ('"samples": 300', '"samples": 1.5', 12, ["samples must be of type int"]),
        ('"value": 3,', '"value": 3.5,', 13, ["a count must be whole"]),
        (f'"{HERE.id}"}}\n', f'"{HERE.id}"}}}}\n', 16, ["extra data"]),
        ('"samples": 300},', '"samples": 300}', 13, ["expecting ',' delimiter"]),
        ('"samples": 300},', '"samples": 300},,', 12, ["expecting property name enclosed in double quotes"]),
        (
            '   "compiles"',
            '   "compare ratio to ready"',
            13,
            ["'compare ratio to ready' is here a second time, after line 12"],
        ),
        (f'"{STEP}"', '"reported/step"', 11, ["'reported/step' is here a second time, after line 8"]),
        (' "metrics": {', ' "metrics": 3, "x": {', 7, ["unknown key"]),
        ('{"value": 133.5', '[3], "x": {"value": 133.5', 9, ["must be an object, got [3]"]),
        ("\n}\n", "\n}\n}\n", 17, ["extra data"]),
        ('"reported/step": {', '"reported/step": ' + "[" * 100_000, 8, ["nested too deep"]),
        ('"reported/step": {', '"reported/step', 8, ["without its closing quote"]),
    ],
)
def test_a_damaged_text_is_refused_with_its_line_and_what_to_do(old, new, line, words):
    assert old in TEXT
    with pytest.raises(LocatedError) as caught:
        parse(TEXT.replace(old, new, 1), "cpu")
    assert all(word in caught.value.problem for word in words), caught.value
    assert caught.value.line == line, caught.value


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n")], ids=["\\n", "\\r\\n"])
def test_a_file_cut_anywhere_is_refused_at_the_line_where_it_ends(text):
    for end in range(1, len(text.rstrip())):
        with pytest.raises(LocatedError, match=r"cut short or half merged\? repair it, or `git checkout`") as caught:
            parse(text[:end])
        assert caught.value.line == text.count("\n", 0, end) + 1, text[:end]


def test_the_line_is_right_in_another_layout_too():
    text = json.dumps(json.loads(TEXT), indent=2).replace('"unit": "x"', '"unit": 3')
    with pytest.raises(LocatedError, match="unit must be") as caught:
        parse(text)
    assert "compare ratio" in text.splitlines()[caught.value.line - 1]


# Reading a file.


@pytest.fixture
def path(tmp_path):
    """A file with `METRICS` in it."""
    path = tmp_path / "cpu.json"
    path.write_text(TEXT, newline="\n")
    return path


@contextlib.contextmanager
def refused(path, *words, line=None):
    """The body raises a `BaselineError` with these words, and leaves the file and its folder as they were."""
    before = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    with pytest.raises(BaselineError) as caught:
        yield
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert caught.value.line == line, message
    if line is not None:
        assert message.startswith(f"{path}:{line}: ")
    after = {file.name: file.read_bytes() for file in path.parent.iterdir() if file.is_file()}
    assert after == before


def test_what_was_saved_is_loaded(path):
    assert load(path) == Baselines("cpu", METRICS)


def test_a_byte_order_mark_does_no_harm(path):
    path.write_text("\ufeff" + TEXT, encoding="utf-8")
    assert load(path) == Baselines("cpu", METRICS)


def test_a_missing_file_has_no_metrics(tmp_path):
    assert load(tmp_path / "tpu-v5e.json") == Baselines("tpu-v5e")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (TEXT[: len(TEXT) // 2], 9, ["cut short", "git checkout"]),
        (TEXT.replace('"device": "cpu"', '"device": "tpu-v5e"'), 3, ["metrics of 'tpu-v5e'"]),
    ],
    ids=["cut in half", "of another device"],
)
def test_a_damaged_file_is_refused_and_never_overwritten(path, text, line, words):
    path.write_text(text, newline="")
    with refused(path, *words, line=line):
        load(path)
    with refused(path, *words, line=line):
        save(path, {STEP: {"compiles": COUNT}}, trim={STEP}, gone={"reported/step"})


def test_a_file_that_is_not_utf8_is_refused(path):
    path.write_bytes(TEXT.encode().replace(b"A paper", b"A p\xe4per"))
    with refused(path, "not UTF-8", line=9):
        load(path)
    path.write_bytes(TEXT.encode("utf-16"))
    with refused(path, "not UTF-8", line=1):
        save(path, {STEP: {"compiles": COUNT}})


def test_a_folder_in_the_files_place_is_refused(tmp_path):
    path = tmp_path / "cpu.json"
    path.mkdir()
    with refused(path, str(path), "this is a folder"):
        load(path)
    with refused(path, "this is a folder"):
        save(path, {STEP: {"compiles": COUNT}})


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes on this system")
def test_a_pipe_in_the_files_place_is_refused_and_not_waited_for(tmp_path):
    path = tmp_path / "cpu.json"
    os.mkfifo(path)
    with refused(path, str(path), "this is a pipe", "--perf-baselines"):
        load(path)
    with refused(path, "this is a pipe"):
        save(path, {STEP: {"compiles": COUNT}})


def test_a_path_that_leads_through_a_file_is_refused(path):
    with refused(path, "cannot be read (Not a directory)"):
        load(path / "cpu.json")


# Saving.


def test_the_first_save_makes_folder_and_file(tmp_path):
    path = tmp_path / "a" / "b" / "cpu.json"
    result = save(path, METRICS)
    assert path.read_text() == TEXT
    assert (len(result.of("create")), result.written, result.untouched, result.path) == (3, True, 0, path)


def test_saving_the_same_again_rewrites_nothing(path):
    before = path.stat()
    result = save(path, METRICS, trim=set(METRICS))
    assert (len(result.of("keep")), result.written) == (3, False)
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_saving_nothing_makes_no_file(tmp_path):
    assert not save(tmp_path / "new" / "cpu.json", {}).written
    assert not list(tmp_path.iterdir())


def test_a_save_says_what_it_created_updated_trimmed_kept_and_left_alone(path):
    def count(value):
        return Entry(value, "compiles", "count", "measured", HERE)

    save(
        path, {"t": {"better": count(3), "worse": count(3), "same": count(3), "trim": count(3)}, "off": {"a": count(3)}}
    )
    new = {"better": count(2), "worse": count(4), "create": count(1), "keep": COUNT}
    new["same"] = Entry(3, "compiles", "count", "measured", HERE, detail={"f": 3})
    result = save(path, {"t": new}, trim={"t"})
    assert [change.name for change in result.of("create")] == ["create", "keep"]
    assert [change.name for change in result.of("update")] == ["better", "same", "worse"]
    for direction in ("better", "worse", "same"):
        assert [change.name for change in result.of("update", direction)] == [direction]
    assert result.of("update", "not comparable") == []
    assert [change.name for change in result.of("trim")] == ["trim"]
    assert (result.untouched, result.written) == (4, True)
    assert [change.name for change in save(path, {"t": new}).of("keep")] == [
        "better",
        "create",
        "keep",
        "same",
        "worse",
    ]
    assert load(path).get("off", "a") == count(3)


def test_an_environment_that_no_metric_refers_to_is_dropped(path):
    upgraded = Environment("cpu", 1, "Xeon", "3.11.7", "0.11.0", "0.11.0")
    save(path, {STEP: {"compiles": Entry(3, "compiles", "count", "measured", upgraded)}})
    assert HERE.id in path.read_text()
    assert upgraded.id in path.read_text()
    save(path, {}, gone={STEP})
    assert load(path).environments == {}


def test_the_file_keeps_its_permissions_and_a_new_one_has_the_users(path):
    path.chmod(0o640)
    save(path, {"t": {"a": COUNT}})
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    old = os.umask(0o027)
    try:
        save(path.with_name("gpu.json"), {"t": {"a": COUNT}})
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.with_name("gpu.json").stat().st_mode) == 0o640


def test_a_link_stays_a_link(path, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    real = shutil.move(path, elsewhere / "real.json")
    path.symlink_to(real)
    save(path, {"t": {"a": COUNT}})
    assert path.is_symlink()
    assert parse(real.read_text()).get("t", "a") == COUNT


def test_the_folder_that_a_link_leads_to_is_made(tmp_path):
    real, path = tmp_path / "not there yet" / "real.json", tmp_path / "cpu.json"
    path.symlink_to(real)
    save(path, {"t": {"a": COUNT}})
    assert path.is_symlink()
    assert parse(real.read_text()).get("t", "a") == COUNT


def test_leftovers_of_killed_processes_are_removed_and_other_files_are_not(path):
    leftover = path.with_name(".cpu.json.0badcafe.tmp")
    others = [path.with_name(name) for name in (".gpu.json.0badcafe.tmp", "cpu.json.tmp", ".cpu.json.note")]
    for file in [leftover, *others]:
        file.write_text("half")
    save(path, {"t": {"a": COUNT}})
    assert not leftover.exists()
    assert all(file.read_text() == "half" for file in others)


@pytest.mark.parametrize("function", ["fsync", "replace", "chmod"])
def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch, function):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, refused(path, str(path), "No space left on device", "free some space"):
        patch.setattr(os, function, full)
        save(path, {"t": {"a": COUNT}})
    save(path, {"t": {"a": COUNT}})
    assert load(path).get("t", "a") == COUNT


def test_an_interrupt_while_writing_leaves_the_file_as_it_was(path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(path, {"t": {"a": COUNT}})
    assert path.read_text() == TEXT
    assert sorted(file.name for file in path.parent.iterdir()) == ["cpu.json"]


# Folders that cannot be written to.


@pytest.fixture
def closed_folder():
    """A folder with baselines that this process may read and not write."""
    with closed(lambda folder: (folder / "cpu.json").write_text(TEXT, newline="\n")) as folder:
        yield folder


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no permission bits on Windows")
def test_a_read_only_folder_is_refused_and_can_still_be_read(closed_folder):
    path = closed_folder / "cpu.json"
    assert load(path) == Baselines("cpu", METRICS)
    with refused(path, str(closed_folder), "Permission denied", "writable"):
        check_writable(path)
    with refused(path, str(closed_folder), "Permission denied", "writable"):
        save(path, {"t": {"a": COUNT}})
    with refused(path, str(closed_folder / "new"), "cannot be made (Permission denied)", "--perf-baselines"):
        save(closed_folder / "new" / "cpu.json", {"t": {"a": COUNT}})
    with refused(path, str(closed_folder / "new"), "cannot be made (Permission denied)"):
        check_writable(closed_folder / "new" / "cpu.json")


def test_a_file_in_the_folders_place_is_refused(path):
    with refused(path, str(path), "cannot be made"):
        check_writable(path / "cpu.json")
    with refused(path, "cannot be made"):
        save(path / "sub" / "cpu.json", {"t": {"a": COUNT}})


def test_check_writable_makes_the_folder_and_leaves_nothing_in_it(tmp_path):
    check_writable(tmp_path / "a" / "baselines" / "cpu.json")
    assert list((tmp_path / "a" / "baselines").iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="folders have no permission bits on Windows")
def test_a_link_into_a_folder_that_cannot_be_written_is_told_before_the_run(closed_folder):
    with tempfile.TemporaryDirectory() as open_folder:  # of whom the closed one is closed to
        path = Path(open_folder) / "linked.json"
        path.symlink_to(closed_folder / "cpu.json")
        with refused(path, str(closed_folder), "Permission denied", "writable"):
            check_writable(path)


# The folder: the baselines of the nearest jax that is not newer than the installed one.


@pytest.fixture
def folder(tmp_path):
    """Baselines of three releases, in folders, and of what is older, beside them."""
    for name in ("jax-0.9", "jax-0.10.2", "jax-0.12"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("jax", "taken"),
    [
        ("0.8.3", "."),
        ("0.9.0", "jax-0.9"),
        ("0.10.1", "jax-0.9"),
        ("0.10.2", "jax-0.10.2"),
        ("0.11.0", "jax-0.10.2"),
        ("0.12.0", "jax-0.12"),
        ("0.12.0.1", "jax-0.12"),
        ("0.12.0.dev20261101", "jax-0.12"),
        ("0.12.0rc1", "jax-0.12"),
        ("1.0", "jax-0.12"),
    ],
)
def test_the_nearest_release_that_is_not_newer_is_taken(folder, jax, taken):
    assert folder_for(folder, jax) == folder / taken


def test_without_such_folders_all_versions_share_one(tmp_path):
    assert folder_here(tmp_path) == tmp_path
    assert folder_here(tmp_path / "absent") == tmp_path / "absent"


def test_of_a_folder_that_is_named_itself_it_is_taken(folder):
    assert folder_for(folder / "jax-0.12", "0.10.2") == folder / "jax-0.12"


def test_other_folders_and_files_are_left_alone(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "jax-0.1").touch()
    (tmp_path / "jax-notes.json").touch()
    assert folder_for(tmp_path, "0.12") == tmp_path


@pytest.mark.parametrize("name", ["jax-", "jax-newest", "jax-0.12.x", "jax-0.12 old"])
def test_a_folder_of_no_version_is_refused(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(BaselineError, match=f"{re.escape(name)}: .*such as jax-0.12: rename it"):
        folder_for(tmp_path, "0.12")
