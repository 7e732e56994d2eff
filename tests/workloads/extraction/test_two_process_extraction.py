"""Extraction by two processes of two devices each, as `jax.distributed` joins them on one machine."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import extraction_worker as worker

from perfsuite.workloads.extraction import extract_to, make_extractor
from perfsuite.workloads.extraction.activation_store import ActivationStore
from perfsuite.workloads.qwen2 import Qwen2

SECONDS = 60
"""A pair that takes longer hangs."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def run_pair(role, folder):
    """Both processes' exit status and output, and what they said."""
    path = os.pathsep.join([str(Path(worker.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    command = [sys.executable, worker.__file__, role]
    rest = [str(free_port()), str(folder)]
    with contextlib.ExitStack() as stack:
        pair = []
        for process in range(worker.PROCESSES):
            started = subprocess.Popen(
                [*command, str(process), *rest],
                env=environment,
                cwd=Path(worker.__file__).parents[2],
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            stack.callback(started.wait)
            stack.callback(started.kill)
            stack.callback(started.stdout.close)
            pair.append(started)
        outputs = [started.communicate(timeout=SECONDS)[0] for started in pair]
    said = [[json.loads(line) for line in output.splitlines() if line.startswith("{")] for output in outputs]
    return [started.returncode for started in pair], outputs, said


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The store of one process and one device."""
    store = ActivationStore.create_or_open(tmp_path_factory.mktemp("single"), worker.identity())
    extractor = make_extractor(Qwen2(worker.CONFIG), worker.LAYERS)
    extract_to(store, extractor, worker.params(), worker.sequences(), worker.BATCH, pad_id=0)
    return store


def assert_same_store(mine, expected):
    assert mine.missing().tolist() == []
    for (index, values), (_, other) in zip(mine, expected, strict=True):
        np.testing.assert_allclose(values, other, rtol=1e-4, atol=1e-4, err_msg=f"sample {index}")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signal that cannot be caught")
def test_a_pair_of_which_one_is_killed_ends_and_the_next_pair_stores_what_is_missing(tmp_path, expected):
    status, outputs, said = run_pair("die", tmp_path)
    assert status[0] == -signal.SIGKILL, outputs[0]
    assert status[1] not in (0, None), outputs[1]
    assert said == [[], []]
    # Rows 0 to 3 of each batch are process 0's. The first batch is there, of the next two its half.
    there = ActivationStore.open(tmp_path / "store")
    halves = [*range(8), *range(8, 12), *range(16, 20)]
    assert np.flatnonzero(there.tokens()).tolist() == halves
    for index in halves:
        np.testing.assert_allclose(there.read(index), expected.read(index), rtol=1e-4, atol=1e-4)

    status, outputs, said = run_pair("resume", tmp_path)
    assert status == [0, 0], "\n".join(outputs)
    resumed, across, *wrong = zip(*said, strict=True)
    # Both compute the halves again, and none writes what is there.
    assert [made["written"] for made in resumed] == [[[24, 25, 26, 27]], [[12, 13, 14, 15], [20, 21, 22, 23], [28]]]
    assert [(made["computed"], made["skipped"], made["missing"]) for made in resumed] == [(21, 8, 0)] * 2
    assert_same_store(ActivationStore.open(tmp_path / "store"), expected)
    # Split over the processes by model, each writes a half too.
    assert [len(made["written"]) for made in across] == [4, 4]
    assert sorted(i for made in across for rows in made["written"] for i in rows) == list(range(29))
    assert_same_store(ActivationStore.open(tmp_path / "across"), expected)
    problems = [{made["error"] for made in errors} for errors in wrong]
    assert problems == [
        {"not the same in all 2 processes: pad_id"},
        {
            "of a batch of 8 process 0 would write the samples 0 to 3, which are not whole chunks of 8: take another "
            "batch_size, or a store of smaller chunks"
        },
    ]
