"""A fresh process is like one on another machine."""

import os
import platform
import socket

import jax

from perfsuite.measure.compiles import compiles
from perfsuite.processes import elsewhere


def test_every_process_has_an_environment_of_its_own(tmp_path):
    made = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        made.append(elsewhere.environment(number, folder))
        assert os.path.isdir(made[-1]["TMPDIR"])
    for name in ("HOSTNAME", "TMPDIR"):
        assert len({each[name] for each in made}) == 3, name
    assert [each["PYTHONHASHSEED"] for each in made] == ["0", "1", "2"]


def here():
    return os.getcwd(), socket.gethostname(), platform.node(), os.uname().nodename, jax.process_index()


def test_the_call_is_made_in_another_place_and_only_there(tmp_path):
    before = here()
    with compiles.count() as counted, elsewhere.as_process(2, tmp_path):
        assert here() == (str(tmp_path), *["perfsuite-host-2"] * 3, 2)
        assert jax.devices()[0].process_index == 0
    assert here() == before
    assert counted.compiles == 2, "programs that are compiled before the call"
