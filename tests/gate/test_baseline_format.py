"""The text of `gate.baseline_file`: a text that can be read as a diff, and that is read exactly or refused with its line."""

import dataclasses
import json
from pathlib import Path

import pytest

import perfsuite
from perfsuite.gate.baseline import Baselines, Entry, Revision
from perfsuite.gate.baseline_file import LocatedError, encode, parse, render
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


def test_what_was_rendered_is_parsed():
    assert parse(TEXT) == Baselines("cpu", METRICS)


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
        ('"reported/step": {', '"reported/step": ' + "[" * 100_000, 8, ["nested more than"]),
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
