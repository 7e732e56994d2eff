"""Fresh processes that a test makes up."""

import pytest

from perfsuite.processes import rerun
from perfsuite.processes.rerun import ProcessFailed


@pytest.fixture
def further(monkeypatch):
    """Fresh processes that give these in turn: metrics, or the reason why there are none. Gives the requests made."""

    def give(*parts):
        coming, requests = iter(parts), []

        def measure_again(config, request):
            requests.append(request)
            part = next(coming)
            if isinstance(part, str):
                raise ProcessFailed(part)
            return part

        monkeypatch.setattr(rerun, "measure_again", measure_again)
        return requests

    return give
