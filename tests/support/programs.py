"""Programs that tests compile and read."""

from perfsuite.measure.call import Call
from perfsuite.measure.program.compilation import compile_call
from perfsuite.measure.program.program import Program


def program_of(call: Call, target: str | None = None, **options) -> Program:
    """The facts of a call's program, compiled without running it. The options are those of `compile_call`."""
    return compile_call(call, target, **options).program()
