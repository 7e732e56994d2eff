"""A fresh process is like one of another user on another machine."""

import os
import platform
import socket
import sys

import pytest

from perfsuite.hooks import elsewhere as hooks
from perfsuite.processes import elsewhere
from perfsuite.processes.handover import Request, write_request


@pytest.fixture
def host(monkeypatch):
    of_socket = "gethostname", "getfqdn", "gethostbyname", "gethostbyname_ex", "getaddrinfo"
    for module, name in (*((socket, each) for each in of_socket), (platform, "node"), (os, "uname")):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setenv("HOSTNAME", "perfsuite-host-1")


def test_every_process_has_an_environment_of_its_own(tmp_path):
    made = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        made.append(elsewhere.environment(number, folder))
        assert os.path.isdir(made[-1]["TMPDIR"])
    for name in ("PYTHONHASHSEED", "HOSTNAME", "USER", "LOGNAME", "USERNAME", "TMPDIR"):
        assert len({each[name] for each in made}) == 3, name
    assert [each["PYTHONHASHSEED"] for each in made] == ["0", "1", "2"]


def test_python_calls_the_host_by_the_name_in_the_environment(host):
    hooks.pytest_load_initial_conftests()
    assert {socket.gethostname(), socket.getfqdn(), platform.node(), os.uname().nodename} == {"perfsuite-host-1"}
    assert socket.getfqdn("localhost") == "localhost"


def test_the_name_leads_to_this_host(host):
    hooks.pytest_load_initial_conftests()
    assert socket.gethostbyname(socket.gethostname()) == socket.gethostbyname("localhost")
    assert socket.getaddrinfo(socket.gethostname(), 80) == socket.getaddrinfo("localhost", 80)
    assert socket.gethostbyname("127.0.0.1") == "127.0.0.1"


def test_the_call_is_made_in_other_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    before = os.getcwd()
    with elsewhere.in_other_folders(tmp_path):
        assert (os.getcwd(), os.path.expanduser("~")) == (str(tmp_path), str(tmp_path))
    assert (os.getcwd(), os.environ["HOME"]) == (before, "/home/me")
    monkeypatch.delenv("HOME")
    with elsewhere.in_other_folders(tmp_path):
        pass
    assert "HOME" not in os.environ


def test_installed_packages_are_imported_in_another_order_in_each_process():
    packages = elsewhere.installed_packages()
    assert {"jax", "numpy", "pytest"} <= {*packages}
    assert not {"os", "perfsuite", "tests"} & {*packages}
    orders = [elsewhere.in_another_order(packages, number) for number in range(4)]
    assert orders[0] == []
    assert orders[1] == packages[::-1]
    assert sorted(orders[2]) == sorted(orders[3]) == sorted(packages)
    assert len({tuple(each) for each in (packages, *orders[1:])}) == 4


def test_a_package_that_cannot_be_imported_is_left_to_the_test(tmp_path, monkeypatch, pytestconfig):
    (tmp_path / "fine_one.py").write_text("")
    (tmp_path / "broken_one.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    write_request(tmp_path, Request("test", "test", packages=["broken_one", "absent_one", "fine_one"]))
    monkeypatch.setattr(pytestconfig.option, "perf_again", str(tmp_path))

    class Session:
        config = pytestconfig

    hooks.pytest_sessionstart(Session)
    assert sys.modules.pop("fine_one", None) is not None
