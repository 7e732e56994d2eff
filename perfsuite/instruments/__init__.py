"""The methods of the fixture `perf`: the module of each declares it with `declare`, and has it in an `Instrument`.

`base.METHODS` says which module that is. It is imported when a test first asks for the method, so that one which fails
at import fails no other test, and none costs a session that does without it. Another distribution adds methods by
entry points of the group `perfsuite.instruments`: docs/extending.md.
"""

from perfsuite.instruments.base import Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.metric import Metric

__all__ = ["Call", "Instrument", "Metric", "checked", "declare"]
