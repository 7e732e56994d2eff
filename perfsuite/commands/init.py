"""Write a first perf test of a function, and what the project needs around it.

perfsuite imports the function's module in a process of its own and traces the
function, where its annotations say what its arguments are; it runs nothing. It
adds the setting of the baselines to the project's pytest settings and lines to
.gitignore, and writes a workflow where it finds GitHub or GitLab. What is there
stays as it is.
"""

import argparse

from perfsuite.commands import CommandError, of_pytest
from perfsuite.starting.project import PytestSettings, StartError
from perfsuite.starting.start import start

SUMMARY = "write a first perf test of a function, and what the project needs around it"

EXAMPLES = """examples:
  perfsuite init mypackage.train:step
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="the function to test, as Python imports it")


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and print what was written, what was left, and what is next."""
    settings = of_pytest(
        lambda config: PytestSettings(
            config.rootpath,
            config.inipath,
            tuple(config.getini("testpaths")),
            tuple(map(str, config.getini("pythonpath"))),
            tuple(config.getini("python_files")),
            config.getini("perf_baselines"),
        )
    )
    try:
        started = start(arguments.function, settings)
    except StartError as error:
        raise CommandError(str(error)) from None
    for word, what in started.done:
        print(f"{word:<5} {what}")
    print("next:")
    for number, step in enumerate(started.next, 1):
        print(f"  {number}. {step}")
    return 0
