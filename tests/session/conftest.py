"""Fresh processes that a test makes up."""

import pytest

from perfsuite.session import fresh
from perfsuite.session.modes import Answer


@pytest.fixture
def further(monkeypatch):
    """Fresh processes that give these in turn: metrics, or the reason why there are none. Gives the requests made."""

    def give(*parts):
        coming, requests = iter(parts), []

        def measure_again(config, request):
            requests.append(request)
            part = next(coming)
            return Answer(failure=part) if isinstance(part, str) else Answer(part)

        monkeypatch.setattr(fresh, "measure_again", measure_again)
        return requests

    return give
