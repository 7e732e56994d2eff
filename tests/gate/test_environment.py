"""`gate.environment`: where a metric was made, and which metrics can be compared."""

import dataclasses
import json
import subprocess
import sys
import types
from importlib import metadata
from types import SimpleNamespace

import pytest

from perfsuite.gate import environment
from perfsuite.gate.environment import (
    Environment,
    device_slug,
    environment_from_dict,
    host_processor,
    incomparable,
    normal_flags,
    packages_of,
    present_environment,
    target_environment,
    version_changes,
)
from perfsuite.measure.metric import ESTIMATED

HERE = Environment("cpu", 1, "Xeon", "3.11.7", "0.10.2", "0.10.1", equinox="0.13.8")


def changed(**fields):
    return dataclasses.replace(HERE, **fields)


@pytest.mark.parametrize(
    ("device_kind", "slug"),
    [
        ("cpu", "cpu"),
        ("TPU v2", "tpu-v2"),
        ("TPU v4", "tpu-v4"),
        ("TPU v4 lite", "tpu-v4i"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5e", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
        ("TPU v5p", "tpu-v5p"),
        ("TPU v6 lite", "tpu-v6e"),
        ("TPU v6e", "tpu-v6e"),
        ("TPU7x", "tpu7x"),
        ("TPU v7x", "tpu7x"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
    ],
)
def test_device_slug_is_the_chips_usual_name(device_kind, slug):
    assert device_slug(device_kind) == slug
    assert device_slug(slug) == slug


def test_id_depends_on_the_content_alone():
    # The same on every machine and in every release, or a save would rewrite every line.
    assert HERE.id == changed().id == "495ebe11"
    others = {changed(**{field.name: None}).id for field in dataclasses.fields(HERE) if field.name == "equinox"}
    others |= {changed(device_count=2).id, changed(x64=True).id, changed(xla_flags="--a").id, changed(python="3.12").id}
    assert len(others | {HERE.id}) == 6


def test_dict_round_trips():
    assert environment_from_dict(HERE.as_dict()) == HERE
    assert "process_count" not in HERE.as_dict()  # files from before there were any stay as they are
    assert environment_from_dict(changed(process_count=2).as_dict()) == changed(process_count=2)


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        ({"device_count": 0}, ValueError, "device_count must be at least 1, got 0"),
        ({"device_count": True}, TypeError, "device_count must be a whole number, got True"),
        ({"x64": 1}, TypeError, "x64 must be true or false, got 1"),
        ({"jax": None}, TypeError, "jax must be a text, got None"),
        ({"equinox": 13}, TypeError, "equinox must be a text, got 13"),
    ],
)
def test_a_field_that_does_not_fit_is_named(fields, error, match):
    with pytest.raises(error, match=match):
        changed(**fields)


def test_a_dict_must_have_every_field_and_no_other():
    fields = HERE.as_dict()
    with pytest.raises(ValueError, match="lacks jaxlib"):
        environment_from_dict({key: value for key, value in fields.items() if key != "jaxlib"})
    with pytest.raises(ValueError, match="unknown keys: torch"):
        environment_from_dict(fields | {"torch": "2"})


@pytest.mark.parametrize("now", [changed(python="3.12.1"), changed(device_kind="TPU v4", jax="1.0"), None])
@pytest.mark.parametrize(("kind", "unit"), [("count", "compiles"), ("size", "bytes"), ("info", "s")])
def test_counts_and_sizes_are_always_comparable(kind, unit, now):
    assert incomparable(kind, unit, HERE, now) is None
    assert incomparable(kind, unit, now, HERE) is None


def test_instructions_need_the_same_build_of_python_c_library_and_valgrind():
    system = (("flowlib", "1.0"), ("glibc", "2.36"), ("python build", "3.11.2 of Apr 28"), ("valgrind", "3.19.0"))
    then = changed(packages=system)
    assert incomparable("size", "instructions", then, changed(packages=system, processor="EPYC")) is None
    newer = changed(packages=(("flowlib", "2.0"), ("glibc", "2.39"), ("valgrind", "3.19.0")))
    assert incomparable("size", "instructions", then, newer) == "glibc differs (2.36, now 2.39)"
    assert "3.12" in incomparable("size", "instructions", then, changed(packages=system, python="3.12.0"))
    rebuilt = incomparable("size", "instructions", then, changed(packages=(("python build", "3.11.2 of May 9"),)))
    assert rebuilt == "python build differs (3.11.2 of Apr 28, now 3.11.2 of May 9)"
    assert incomparable("size", "bytes", then, newer) is None


def test_host_calls_need_the_same_python_minor_version():
    assert incomparable("count", "calls", HERE, changed(python="3.11.9", jax="0.11.0")) is None
    reason = incomparable("count", "calls", HERE, changed(python="3.12.0"))
    assert reason == "calls were counted under Python 3.11, this is Python 3.12"


def test_estimated_times_need_the_same_compiler():
    assert incomparable("size", ESTIMATED, HERE, changed(python="3.12.0", jax="0.11.0", processor="EPYC")) is None
    for name in ("jaxlib", "libtpu"):
        reason = incomparable("size", ESTIMATED, HERE, changed(**{name: "9.9"}))
        assert reason == f"the compiler that estimates differs ({name} {getattr(HERE, name)}, now 9.9)"
    assert incomparable("size", "FLOP", HERE, changed(jaxlib="9.9")) is None, "an upgrade is gated by all else"


@pytest.mark.parametrize("unit", ["calls", "calls to trace", "modules"])
def test_a_time_or_a_ratio_is_compared_as_one_whatever_its_unit(unit):
    other_python = changed(python="3.13.0")
    assert incomparable("time", unit, HERE, other_python) is None
    assert incomparable("ratio", unit, HERE, other_python) is None
    assert incomparable("time", unit, HERE, changed(processor="EPYC")) == "host processor differs (Xeon, now EPYC)"
    assert incomparable("ratio", unit, HERE, changed(device_kind="TPU v4")) == "device kind differs (cpu, now TPU v4)"


def test_a_ratio_needs_the_same_device_kind():
    other_host = changed(processor="EPYC", python="3.13.0", jax="0.11.0", device_count=8, x64=True, xla_flags="--a")
    assert incomparable("ratio", "x", HERE, other_host) is None
    assert incomparable("ratio", "x", HERE, changed(device_kind="TPU v4")) == "device kind differs (cpu, now TPU v4)"
    assert incomparable("ratio", "x", HERE, changed(process_count=2)) == "process count differs (1, now 2)"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"device_kind": "TPU v4"}, "device kind differs (cpu, now TPU v4)"),
        ({"processor": "EPYC"}, "host processor differs (Xeon, now EPYC)"),
        ({"device_count": 8}, "device count differs (1, now 8)"),
        ({"process_count": 4}, "process count differs (1, now 4)"),
        ({"x64": True}, "x64 differs (False, now True)"),
        ({"xla_flags": "--a"}, "XLA_FLAGS differs (empty, now --a)"),
    ],
)
def test_a_time_needs_the_same_fingerprint(fields, reason):
    assert incomparable("time", "us", HERE, changed(**fields)) == reason
    assert changed(**fields).fingerprint() != HERE.fingerprint()


@pytest.mark.parametrize(("kind", "unit"), [("ratio", "x"), ("time", "us"), ("count", "calls")])
def test_an_unknown_environment_is_not_taken_for_the_same(kind, unit):
    assert "environment of both metrics is known" in incomparable(kind, unit, None, HERE)


def test_version_changes_name_both_versions():
    now = changed(jax="0.11.0", equinox=None, optax="0.2.8", processor="EPYC")
    assert version_changes(HERE, now) == ["jax 0.10.2 -> 0.11.0", "equinox 0.13.8 -> absent", "optax absent -> 0.2.8"]
    assert version_changes(HERE, HERE) == []
    assert version_changes(HERE, changed(x64=True)) == ["jax_enable_x64 False -> True"]
    assert version_changes(None, HERE) == []


def test_an_upgrade_of_jax_comes_first_and_jaxlib_is_named_where_it_went_another_way():
    then = changed(jax="0.10.2", jaxlib="0.10.2")
    both = {"python": "3.13.0", "jax": "0.12.0.1", "jaxlib": "0.12.0.1"}
    assert version_changes(then, changed(**both)) == ["jax 0.10.2 -> 0.12.0.1", f"python {HERE.python} -> 3.13.0"]
    assert version_changes(then, changed(**both, libtpu="0.0.50"))[1] == "libtpu absent -> 0.0.50"
    assert version_changes(then, changed(jax="0.12.0.1", jaxlib="0.12.0"))[1] == "jaxlib 0.10.2 -> 0.12.0"


def test_a_compiled_metric_does_not_depend_on_the_host_that_it_was_compiled_on(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_a=1")
    elsewhere = changed(processor="EPYC", python="3.13.1", device_count=8, xla_flags="--xla_a=1")
    compiled = target_environment(HERE, "TPU v5 lite", libtpu="0.0.42")
    assert compiled == target_environment(elsewhere, "TPU v5 lite", libtpu="0.0.42")
    assert environment_from_dict(compiled.as_dict()) == compiled
    assert (compiled.device_kind, compiled.device_count, compiled.libtpu) == ("TPU v5 lite", 1, "0.0.42")
    assert (compiled.jax, compiled.jaxlib, compiled.equinox) == (HERE.jax, HERE.jaxlib, HERE.equinox)
    # Measured later on the device itself, under whatever Python.
    assert version_changes(compiled, changed(libtpu="0.0.42")) == []
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_b=2 --xla_a=1")
    assert target_environment(HERE, "TPU v5 lite").xla_flags == "--xla_a=1 --xla_tpu_b=2"


def test_the_flags_of_a_gpu_target_are_those_of_the_gpus_compiler(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_b=2 --xla_cpu_c=3 --xla_gpu_a=1")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_b=2")
    compiled = target_environment(HERE, "NVIDIA H100 80GB HBM3")
    assert (compiled.xla_flags, compiled.libtpu) == ("--xla_gpu_a=1 --xla_gpu_b=2", None)


def test_flags_that_change_no_program_are_left_out_and_order_does_not_matter():
    assert normal_flags("") == ""
    assert normal_flags("  --xla_b=2   --xla_a=1 ") == normal_flags("--xla_a=1 --xla_b=2") == "--xla_a=1 --xla_b=2"
    assert normal_flags("--xla_dump_to=/home/me --xla_force_host_platform_device_count=8 --xla_a") == "--xla_a"
    # Of one flag given twice the last counts, so these two differ.
    assert normal_flags("--xla_a=1 --xla_a=2") != normal_flags("--xla_a=2 --xla_a=1")


X86 = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\nstepping\t: 1\nflags\t\t: fpu\n"


@pytest.mark.parametrize(
    ("cpuinfo", "processor"),
    [
        ("processor\t: 0\nmodel name\t: Intel(R) Xeon(R) @ 2.2GHz\nflags: a\n", "Intel(R) Xeon(R) @ 2.2GHz"),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        (X86.format(model=17), "AMD EPYC 25-17-1"),
        (X86.format(model=1), "AMD EPYC 25-1-1"),
        (X86.format(model=17) + "\n" + X86.format(model=1), "AMD EPYC 25-17-1"),
    ],
)
def test_host_processor_is_the_model_that_linux_names(tmp_path, cpuinfo, processor):
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert host_processor(tmp_path / "cpuinfo") == processor


def test_processors_of_arm_differ_by_their_parts(tmp_path):
    found = []
    for part in ("0xd0c", "0xd40"):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: {part}\n")
        found.append(host_processor(tmp_path / "cpuinfo"))
        assert found[-1].endswith(f" 0x41-{part}")
    assert len(set(found)) == 2


def test_host_processor_is_never_empty(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nCPU part\t: 0xd0c\n")
    assert host_processor(tmp_path / "cpuinfo")
    assert host_processor(tmp_path / "missing")


def test_present_environment_describes_this_process(monkeypatch):
    import jax

    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/nowhere")
    here = present_environment()
    assert (here.device_kind, here.device_count) == (jax.devices()[0].device_kind, jax.device_count())
    assert (here.jax, here.xla_flags) == (jax.__version__, "")
    assert here.python == ".".join(map(str, sys.version_info[:3]))
    assert here.x64 is bool(jax.config.jax_enable_x64)
    assert environment_from_dict(here.as_dict()) == here


@pytest.mark.parametrize(("platform", "libtpu"), [("cpu", None), ("tpu", "0.0.42")])
def test_libtpu_is_part_of_the_environment_of_a_tpu_alone(monkeypatch, platform, libtpu):
    # To install it changes nothing on a machine without a TPU, so it must not show there.
    import jax

    monkeypatch.setattr(metadata, "version", {"libtpu": "0.0.42"}.get)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="a device", platform=platform)])
    assert present_environment().libtpu == libtpu


def test_the_baseline_modules_load_neither_jax_nor_numpy():
    modules = "baseline", "baseline_file", "merging", "environment"
    imports = "".join(f"import perfsuite.gate.{module}\n" for module in modules)
    code = (
        imports + "import sys\nprint([name for name in ('jax', 'numpy', 'filelock', 'pytest') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=_root())
    assert found.stdout.strip() == "[]", found.stdout


def _root():
    import perfsuite

    return perfsuite.__path__[0].removesuffix("perfsuite")


def test_the_packages_that_parts_name_are_those_that_are_installed(monkeypatch, tmp_path):
    library, own = types.ModuleType("flowlib.bijections"), types.ModuleType("project.bijections")
    library.__file__, own.__file__ = "/venv/lib/site-packages/flowlib/bijections.py", "/home/me/project/bijections.py"
    for module, function in ((library, "spline"), (library, "both"), (own, "mine"), (own, "both")):
        setattr(module, function, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for folder, package in (("site-packages", "flowlib"), ("src", "project")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{package}.py").touch()
        monkeypatch.syspath_prepend(tmp_path / folder)
    distributions = {"flowlib": ["dm-flowlib", None], "project": ["project"], "jax": ["jax"], "gone": ["gone"]}
    monkeypatch.setattr(environment, "_distributions", lambda: distributions)
    for part in (
        "flowlib",
        "bijections.py:spline",
        "flowlib.bijections:spline",
        "flowlib.bijections:both",
        "f32 x f32 dot in spline.<locals>.f (bijections.py)",
    ):
        assert packages_of([part]) == ("dm-flowlib",)
    others = ["bijections.py:mine", "other.py:spline", "jax._src.core:eval_jaxpr", "jax", "arguments", "?:f", "gone"]
    of_own = ["project", "bijections.py:both", "dot in both (bijections.py)"]
    assert packages_of([*others, *of_own]) == ()


def test_a_package_without_its_metadata_has_no_name_and_no_version(monkeypatch, tmp_path):
    broken = tmp_path / "site-packages/flowlib-1.0.dist-info"
    broken.mkdir(parents=True)
    (broken / "top_level.txt").write_text("flowlib\n")
    (broken.parent / "flowlib.py").touch()
    monkeypatch.syspath_prepend(broken.parent)
    monkeypatch.setattr(environment, "_distributions", environment._distributions.__wrapped__)
    assert packages_of(["flowlib"]) == ()


def test_packages_are_kept_and_named_where_their_versions_differ():
    then, now = (changed(packages=(("a", version), (name, "1"))) for version, name in (("1", "b"), ("2", "c")))
    assert environment_from_dict(json.loads(json.dumps(then.as_dict()))) == then
    assert version_changes(then, now) == ["a 1 -> 2"], "another set of parts is no other version"
    with pytest.raises(TypeError, match="packages must be versions by name, got"):
        environment_from_dict(HERE.as_dict() | {"packages": {"a": 1}})
