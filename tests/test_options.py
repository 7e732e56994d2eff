"""The command line: what each option does, and which are refused."""

import json

import pytest


@pytest.fixture
def counted(perf_test):
    perf_test("perf.record('figure', 3, unit='things', kind='count')")


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


def test_strict_fails_a_figure_without_a_baseline_and_passes_it_once_saved(project, counted):
    result = project.runpytest_inprocess("--perf", "--perf-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*figure has no baseline (--perf-strict): pytest --perf-save records it*"])
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)
    project.runpytest_inprocess("--perf", "--perf-strict").assert_outcomes(passed=1)


def test_strict_can_be_set_in_the_ini_and_does_not_hinder_saving(project, counted):
    project.makeini("[pytest]\nperf_strict = true\npythonpath = .\n")
    project.runpytest_inprocess("--perf").assert_outcomes(failed=1)
    project.runpytest_inprocess("--perf-save").assert_outcomes(passed=1)


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
    figures = json.loads((project.path / "baselines/cpu.json").read_text())["figures"]
    assert {len(figures), *(entry["layers"]["value"] for entry in figures.values())} == {2, 12}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--perf-save", "--perf-strict"], "*--perf-save and --perf-strict contradict each other*"),
        (["--perf", "--perf-size=huge"], "*--perf-size*invalid choice: 'huge'*"),
        (["--perf", "--perf-seconds=0"], "*--perf-seconds*must be a number of seconds above zero, got '0'*"),
        (["--perf", "--perf-seconds=nan"], "*--perf-seconds*must be a number of seconds above zero, got 'nan'*"),
        (["--perf", "--perf-seconds=soon"], "*--perf-seconds*must be a number of seconds above zero, got 'soon'*"),
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
        ("perf(tolerence=0.1)", "*test_marked*has no argument 'tolerence'; it takes seconds, tolerance*"),
        ("perf(0.1)", "*test_marked*takes keyword arguments only*"),
        ("perf(tolerance='lots')", "*test_marked*tolerance=*must be a number above zero, got 'lots'*"),
        ("perf(seconds=0)", "*test_marked*seconds=*must be a number above zero, got 0*"),
        ("perf(seconds=float('nan'))", "*test_marked*seconds=*must be a number above zero, got nan*"),
    ],
)
@pytest.mark.parametrize("option", [[], ["--perf"]], ids=["idle", "active"])
def test_a_bad_marker_argument_is_a_usage_error_that_names_the_test(project, marker, message, option):
    project.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_marked(perf): pass")
    result = project.runpytest_inprocess(*option)
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
    ]
    for option in [*options, "perf_baselines", "perf_strict"]:
        assert option in result.stdout.str()
