"""The releases between two versions: from pip's own list, without a network."""

import io
import json
import subprocess
import urllib.error
import urllib.request

import pytest
from support.against import wheel

from perfsuite.bisecting import releases
from perfsuite.bisecting.found import BisectFailed
from perfsuite.bisecting.releases import Package, between, notes_address, read_packages


@pytest.fixture
def index(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    for version in ("1.0", "1.1", "1.2rc1", "1.2", "1.10", "2.0.dev3"):
        wheel(tmp_path, "steplib", version, "")
    return tmp_path


def test_releases_in_the_order_of_their_versions(index):
    assert between(Package("steplib", "1.1", "1.10"), pre=False) == ["1.1", "1.2", "1.10"]
    assert between(Package("steplib", "1.10", "1.0"), pre=True) == ["1.0", "1.1", "1.2rc1", "1.2", "1.10"]


def test_an_end_before_a_release_stays(index):
    assert between(Package("steplib", "1.2rc1", "2.0.dev3"), pre=False) == ["1.2rc1", "1.2", "1.10", "2.0.dev3"]


def test_yanked_releases_are_left_out(index, monkeypatch):
    files = [("1.1", {"yanked": "broken"}), ("1.2", {"yanked": "broken"}), ("1.2", {"yanked": False})]
    monkeypatch.setattr(releases, "_files", lambda name: files)
    assert between(Package("steplib", "1.0", "1.10"), pre=False) == ["1.0", "1.2", "1.10"]


def test_the_index_tells_files_and_what_is_yanked(monkeypatch):
    files = [
        {"filename": "steplib-1.0-py3-none-any.whl", "yanked": False},
        {"filename": "steplib-1.1.tar.gz", "yanked": "broken"},
        {"filename": "steplib-1.1-py3-none-any.whl", "yanked": True},
        {"filename": "steplib-odd.exe"},
    ]
    asked = []

    def answer(request, timeout):
        asked.append(request.full_url)
        return io.BytesIO(json.dumps({"files": files}).encode())

    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index/simple/")
    monkeypatch.setattr(urllib.request, "urlopen", answer)
    assert releases._yanked("steplib") == {"1.1"}
    assert asked == ["https://index/simple/steplib/"]


def test_an_index_that_does_not_answer_tells_nothing(monkeypatch):
    def refuse(request, timeout):
        raise urllib.error.URLError("no network")

    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index/simple")
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    assert releases._yanked("steplib") == set()


def test_a_version_that_the_index_has_not(index):
    with pytest.raises(
        BisectFailed, match=r"steplib 1.5: the index has no such release .* nearest are 1.1, 1.2rc1, 1.2, 1.10"
    ):
        between(Package("steplib", "1.1", "1.5"), pre=False)


def test_a_package_that_the_index_has_not(index):
    with pytest.raises(BisectFailed, match="--package nolib: pip lists no releases: ERROR: No matching distribution"):
        between(Package("nolib", "1", "2"), pre=False)


def test_without_pip_the_index_itself_is_asked(monkeypatch):
    ended = subprocess.CompletedProcess([], 1, "", "python: No module named pip")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: ended)
    files = [("1.0", {}), ("1.1", {"requires-python": ">=3.8"}), ("1.2", {"requires-python": ">=4"})]
    monkeypatch.setattr(releases, "_files", lambda name: files)
    assert between(Package("steplib", "1.0", "1.1"), pre=False) == ["1.0", "1.1"]
    with pytest.raises(BisectFailed, match="no such release"):
        between(Package("steplib", "1.0", "1.2"), pre=False)
    monkeypatch.setattr(releases, "_files", lambda name: None)
    with pytest.raises(BisectFailed, match="install pip"):
        between(Package("steplib", "1.0", "1.1"), pre=False)


def test_packages_of_the_command_line():
    assert read_packages(["Jax_Lib"], "0.10.0", "0.9.2") == [Package("jax-lib", "0.10.0", "0.9.2")]
    several = read_packages(["jax==0.10.0..0.10.2", "flax == 0.12.8..0.12.1"], None, None)
    assert several == [Package("jax", "0.10.0", "0.10.2"), Package("flax", "0.12.8", "0.12.1")]
    assert [(each.older, each.newer, each.bad_is_newer) for each in several] == [
        ("0.10.0", "0.10.2", True),
        ("0.12.1", "0.12.8", False),
    ]


@pytest.mark.parametrize(
    ("texts", "good", "bad", "why"),
    [
        (["jax"], None, None, "say --good VERSION and --bad VERSION"),
        (["jax"], "0.10.0", None, "say --good VERSION"),
        (["jax"], "0.10.0", "main", "Invalid version"),
        (["jax"], "0.10", "0.10.0", "the same version"),
        (["jax", "flax"], "0.10.0", "0.10.2", "each has versions of its own"),
        (["jax==0.10.0"], None, None, r'"good\.\.bad"'),
        (["jax==0.10.0..0.10.2"], "0.10.0", None, "leave out --good and --bad"),
        (["jax==0.1..0.2", "Jax==0.1..0.2"], None, None, "twice"),
        (["jax lib==0.1..0.2"], None, None, "--package jax lib"),
        (["jax[tpu]==0.1..0.2"], None, None, "no package's name"),
        (["==0.1..0.2"], None, None, "for example --package jax==0"),
    ],
)
def test_packages_that_cannot_be_read(texts, good, bad, why):
    with pytest.raises(BisectFailed, match=why):
        read_packages(texts, good, bad)


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        (("Project-URL: Homepage, https://h", "Project-URL: Change Log, https://c"), "https://c"),
        (("Home-page: https://h",), "https://h"),
        (("Project-URL: repository, https://r",), "https://r"),
        ((), ""),
    ],
)
def test_where_a_package_says_what_is_new(tmp_path, lines, address):
    info = tmp_path / "step_lib-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", "Name: step_lib", "Version: 1.0", *lines, ""]))
    assert notes_address("step-lib", tmp_path) == address
