"""`on_one_processor`: less of the machine than there is."""

import contextlib
import os


@contextlib.contextmanager
def on_one_processor():
    """This process and those that it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
