"""How a worker of pytest-xdist sends reports to the main process: there is no public way to take one back."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from perfsuite.measure.private.capabilities import XDIST
from perfsuite.measure.private.names import Attribute, Functions

_SENDER = Functions("xdist.remote", "WorkerInteractor")
_SEND = Attribute("xdist.remote", "sendevent")
_REPORT = Attribute("xdist.remote", "testreport")
"""The name of the event."""


def sender_of(plugins: Iterable[object]) -> Any:
    """What sends the reports of this worker, by its plugins; None in other processes, and where XDIST is lost."""
    if XDIST.lost():
        return None
    # A worker gets the module's text, and the module another name: the class is known by its own.
    return next((each for each in plugins if type(each).__name__ == _SENDER.prefix), None)


@contextlib.contextmanager
def held_back(sender: Any, taken_back: Callable[[], bool]) -> Iterator[None]:
    """Send what is reported inside at the end of the block, or never, where `taken_back()` says so."""
    send, kept = _SEND.of(sender), []

    def keep(name: str, **what: Any) -> None:
        if name == _REPORT.name:
            kept.append(what)
        else:
            send(name, **what)

    _SEND.put(sender, keep)
    try:
        yield
    finally:
        _SEND.put(sender, send)
        for what in () if taken_back() else kept:
            send(_REPORT.name, **what)
