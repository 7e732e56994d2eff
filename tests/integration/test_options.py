"""The command line: what each option does, and which are refused."""

import json

import pytest


@pytest.fixture
def counted(perf_test):
    perf_test("perf.record('metric', 3, unit='things', kind='count')")


def test_without_perf_a_perf_test_is_skipped_and_says_how_to_run_it(project, counted):
    result = project.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*perf test: run it with `pytest --perf`*"])


def test_a_test_marked_perf_is_skipped_without_using_the_fixture(project):
    project.makepyfile("import pytest\n@pytest.mark.perf\ndef test_marked(): raise RuntimeError('ran')")
    project.runpytest_inprocess().assert_outcomes(skipped=1)


def test_a_fixture_asked_for_while_the_test_runs_skips_it_too(project):
    project.makepyfile("def test_late(request): request.getfixturevalue('perf')")
    project.runpytest_inprocess().assert_outcomes(skipped=1)


def test_perf_runs_perf_tests_beside_the_others(project, counted):
    project.makepyfile(test_other="def test_other(): pass")
    project.runpytest_inprocess("--perf").assert_outcomes(passed=2)


def test_perf_only_deselects_the_others(project, counted):
    project.makepyfile(test_other="def test_other(): pass")
    project.runpytest_inprocess("--perf-only").assert_outcomes(passed=1, deselected=1)


def test_using_the_fixture_marks_the_test_so_that_m_selects_it(project, counted):
    project.makepyfile(test_other="def test_other(): pass")
    project.runpytest_inprocess("--perf", "-m", "perf").assert_outcomes(passed=1, deselected=1)


def test_save_writes_the_folder_named_on_the_command_line(project, counted):
    project.runpytest_inprocess("--perf-save", "--perf-baselines=elsewhere/deep").assert_outcomes(passed=1)
    assert (project.path / "elsewhere/deep/cpu.json").exists()
    assert not (project.path / "baselines").exists()


def test_save_writes_the_folder_named_in_the_ini(project, counted):
    project.makeini("[pytest]\nperf_baselines = kept/here\npythonpath = .\n")
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    assert (project.path / "kept/here/cpu.json").exists()


def test_baselines_of_a_version_of_jax_are_in_a_folder_of_their_own(project, counted):
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    for name in ("jax-0.10", "jax-999"):
        (project.path / "baselines" / name).mkdir()
    before = project.runpytest_inprocess("--perf", "--perf-strict")
    before.assert_outcomes(failed=1)
    before.stdout.fnmatch_lines(["*baselines/jax-0.10/cpu.json (no metrics yet*"])
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    project.runpytest_inprocess("--perf", "--perf-strict").assert_outcomes(passed=1)
    written = sorted(path.relative_to(project.path).as_posix() for path in project.path.glob("baselines/**/*.json"))
    assert written == ["baselines/cpu.json", "baselines/jax-0.10/cpu.json"]


def test_strict_can_be_set_in_the_ini_and_does_not_hinder_saving(project, counted):
    project.makeini("[pytest]\nperf_strict = true\npythonpath = .\n")
    project.runpytest_inprocess("--perf").assert_outcomes(failed=1)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)


AT_ONE = "perf.record('ratio', 1.0, unit='x', kind='ratio', interval=(1, 1))"
OPEN = "perf.record('ratio', 1.0, unit='x', kind='ratio', interval=(0.9, 2.2))"


def saved_at_one(project, perf_test):
    perf_test(AT_ONE)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("words", "open_one", "new_one"),
    [
        ([], "passed", "passed"),
        (["--perf-strict"], "passed", "failed"),
        (["--perf-strict=new"], "passed", "failed"),
        (["--perf-strict=inconclusive"], "failed", "passed"),
        (["--perf-strict=new,inconclusive"], "failed", "failed"),
        (["--perf-strict=inconclusive,new"], "failed", "failed"),
        (["--perf-strict", "--perf-strict=inconclusive"], "failed", "failed"),
    ],
)
def test_strict_fails_the_verdicts_that_its_words_name(project, perf_test, words, open_one, new_one):
    saved_at_one(project, perf_test)
    perf_test(OPEN)
    project.runpytest_inprocess("--perf", *words).assert_outcomes(**{open_one: 1})
    perf_test(AT_ONE, "perf.record('another', 3, unit='things', kind='count')")
    project.runpytest_inprocess("--perf", *words).assert_outcomes(**{new_one: 1})


def test_strict_does_not_swallow_the_path_behind_it(project, counted):
    project.makepyfile(test_other="def test_other(): pass")
    result = project.runpytest_inprocess("--perf", "--perf-strict", "test_other.py")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*test_step*")


@pytest.mark.parametrize("word", ["new", "inconclusive"])
@pytest.mark.parametrize("spelling", ["perf_strict = {}", "perf_strict = {},new", "perf_strict = new {}"])
def test_the_ini_takes_the_words_too(project, perf_test, word, spelling):
    saved_at_one(project, perf_test)
    perf_test(OPEN)
    project.makeini(f"[pytest]\n{spelling.format(word)}\npythonpath = .\n")
    expected = {"new": "passed", "inconclusive": "failed"}[word]
    project.runpytest_inprocess("--perf").assert_outcomes(**{expected: 1})
    project.runpytest_inprocess("--perf", "--override-ini=perf_strict=false").assert_outcomes(passed=1)


def test_an_unknown_word_in_the_ini_is_a_usage_error_that_names_the_words(project, counted):
    project.makeini("[pytest]\nperf_strict = new undecided\npythonpath = .\n")
    result = project.runpytest_inprocess("--perf")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*perf_strict: must be true, false or of new, inconclusive, got 'undecided'*"])


def test_size_reaches_the_test_and_its_fixtures_and_has_baselines_of_its_own(project):
    project.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session")
        def layers(perf_size):
            return {"small": 2, "full": 12}[perf_size]

        def test_size(perf, layers):
            assert perf.size == ("full" if layers == 12 else "small")
            perf.record("layers", layers, unit="layers", kind="count")
        """
    )
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    project.runpytest_inprocess("--perf-save", "--perf-size=full").assert_outcomes(passed=1)
    project.runpytest_inprocess("--perf", "--perf-strict").assert_outcomes(passed=1)
    project.runpytest_inprocess("--perf", "--perf-strict", "--perf-size=full").assert_outcomes(passed=1)
    metrics = json.loads((project.path / "baselines/cpu.json").read_text())["metrics"]
    assert {len(metrics), *(entry["layers"]["value"] for entry in metrics.values())} == {2, 12}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--perf-save", "--perf-strict"], "*--perf-save and --perf-strict contradict each other*"),
        (["--perf", "--perf-strict=undecided"], "*--perf-strict=new,inconclusive*explicit argument 'undecided'*"),
        (["--perf", "--perf-size=huge"], "*--perf-size*invalid choice: 'huge'*"),
        (["--perf", "--perf-seconds=0"], "*--perf-seconds*must be a number of seconds above zero, got '0'*"),
        (["--perf", "--perf-seconds=nan"], "*--perf-seconds*must be a number of seconds above zero, got 'nan'*"),
        (["--perf", "--perf-seconds=soon"], "*--perf-seconds*must be a number of seconds above zero, got 'soon'*"),
        (["--perf", "--perf-trace="], "*--perf-trace*must be a folder, got an empty name*"),
        (["--perf", "--perf-trace"], "*--perf-trace*expected one argument*"),
        (["--perf", "--perf-trace=test_step.py"], "*ERROR: --perf-trace: *test_step.py: no trace can be written here*"),
        (["--perf-sieze=small"], "*unrecognized arguments: --perf-sieze=small*"),
    ],
)
def test_a_bad_option_is_a_usage_error(project, counted, arguments, message):
    result = project.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("perf(tolerence=0.1)", "*test_marked*has no argument 'tolerence'; it takes quiet, seconds, tolerance*"),
        ("perf(0.1)", "*test_marked*takes keyword arguments only*"),
        ("perf(tolerance='lots')", "*test_marked*tolerance=*must be a number above zero, got 'lots'*"),
        ("perf(seconds=0)", "*test_marked*seconds=*must be a number above zero, got 0*"),
        ("perf(seconds=float('nan'))", "*test_marked*seconds=*must be a number above zero, got nan*"),
        ("perf(quiet=1)", "*test_marked*quiet=*must be True or False, got 1*"),
    ],
)
@pytest.mark.parametrize("option", [[], ["--perf"]], ids=["idle", "active"])
def test_a_bad_marker_argument_is_a_usage_error_that_names_the_test(project, marker, message, option):
    project.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_marked(perf): pass")
    result = project.runpytest_inprocess(*option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


@pytest.fixture
def of_targets(project):
    project.makeini("[pytest]\npythonpath = .\nperf_targets = tpu-v5e tpu-v6e\n")
    project.makepyfile("def test_program(perf_target): print(f'for {perf_target}')")


@pytest.mark.parametrize("option", [[], ["--perf"]], ids=["idle", "active"])
def test_a_test_that_asks_for_perf_target_runs_for_each_target_of_the_ini(project, of_targets, option):
    result = project.runpytest_inprocess("-rP", "-v", *option)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*::test_program[[]tpu-v5e] PASSED*", "*::test_program[[]tpu-v6e] PASSED*"])
    result.stdout.fnmatch_lines(["for tpu-v5e", "for tpu-v6e"])


def test_targets_on_the_command_line_take_the_place_of_those_in_the_ini(project, of_targets):
    result = project.runpytest_inprocess(
        "-v", "--perf-target=tpu-v4", "--perf-target", "tpu-v5p", "--perf-target=tpu-v4"
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*::test_program[[]tpu-v4] PASSED*", "*::test_program[[]tpu-v5p] PASSED*"])


def test_without_a_target_a_test_that_asks_for_one_runs_for_the_present_device(project):
    project.makepyfile("def test_program(perf_target): assert perf_target is None")
    result = project.runpytest_inprocess("-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*::test_program[[]here] PASSED*"])


@pytest.mark.parametrize(
    "names", ["'perf_target, chips'", "['perf_target', 'chips']", "argnames=('perf_target', 'chips')"]
)
def test_a_test_may_choose_its_targets_itself(project, of_targets, names):
    values = "argvalues=" if names.startswith("argnames") else ""
    project.makepyfile(
        f"""
        import pytest
        @pytest.mark.parametrize({names}, {values}[("tpu-v4", 8)])
        def test_program(perf_target, chips): assert (perf_target, chips) == ("tpu-v4", 8)
        """
    )
    project.runpytest_inprocess().assert_outcomes(passed=1)


def test_perf_target_asked_for_while_the_test_runs_is_refused(project, of_targets):
    project.makepyfile("def test_late(request): request.getfixturevalue('perf_target')")
    result = project.runpytest_inprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*perf_target must be an argument of the test or of its fixtures*"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--perf"], "*ERROR: the ini option perf_targets: *'abacus'*tpu-v5e*"),
        (["--perf-save"], "*ERROR: the ini option perf_targets: *'abacus'*tpu-v5e*"),
        (
            ["--perf", "--perf-target=tpu-v5e", "--perf-target=../sneaky"],
            "*ERROR: --perf-target: *'../sneaky'*tpu-v5e*",
        ),
    ],
)
def test_an_unknown_target_is_a_usage_error_that_says_who_named_it(project, counted, arguments, message):
    project.makeini("[pytest]\npythonpath = .\nperf_targets = tpu-v5e abacus\n")
    result = project.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])


def test_collect_only_starts_nothing(project, counted):
    result = project.runpytest_inprocess("--perf-save", "--collect-only")
    assert result.ret == 0
    assert not (project.path / "baselines").exists()


def test_help_lists_every_option(project):
    result = project.runpytest_inprocess("--help")
    options = [
        "--perf ",
        "--perf-only",
        "--perf-save",
        "--perf-strict",
        "--perf-size",
        "--perf-seconds",
        "--perf-baselines",
        "--perf-target",
        "--perf-trace",
    ]
    for option in [*options, "perf_baselines", "perf_strict", "perf_targets"]:
        assert option in result.stdout.str()
