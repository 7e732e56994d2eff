"""One of the processes of `test_two_process_extraction.py`: `python extraction_worker.py ROLE PROCESS PORT FOLDER`.

It says on standard output, in lines of JSON, what it did.
"""

import dataclasses
import functools
import json
import os
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from perfsuite.workloads.extraction import StoreIdentity
from perfsuite.workloads.extraction.activation_store import ActivationStore
from perfsuite.workloads.extraction.sharded_extraction import extract_to_shared, make_sharded_extractor
from perfsuite.workloads.qwen2 import Qwen2, Qwen2Config
from perfsuite.workloads.qwen2.weights import weight_table
from support.qwen2_numpy import random_state_dict
from support.qwen2_weights import from_state_dict

CONFIG = Qwen2Config.tiny(vocab_size=64, hidden_size=32, num_layers=2, num_heads=8, num_key_value_heads=4)
LAYERS = (1, 0)
LENGTH, PER_CHUNK, BATCH = 6, 2, 8
PROCESSES, DEVICES = 2, 2


def sequences():
    """Three whole batches and a part of one, whose last chunk is a part of one too."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, CONFIG.vocab_size, length).tolist() for length in rng.integers(1, LENGTH + 1, 29)]


@functools.cache
def params():
    return from_state_dict(CONFIG, random_state_dict(CONFIG, weight_table(CONFIG)))


def identity():
    return StoreIdentity.of(CONFIG, LAYERS, params(), sequences(), samples_per_chunk=PER_CHUNK, length=LENGTH)


def extractor_over(devices):
    """`devices` are an array `[data, model]`."""
    mesh = Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    return make_sharded_extractor(Qwen2(CONFIG), LAYERS, mesh)


class Watched(ActivationStore):
    """Keeps which samples it wrote. Process 1 is slow, so that the other one has to wait for it."""

    written: tuple = ()

    def write(self, done):
        self.before()
        self.written = (*self.written, done.batch.indices[done.batch.rows].tolist())
        super().write(done)

    def before(self):
        time.sleep(0.2 * jax.process_index())


class Dying(Watched):
    """Process 0 is killed when it has written its part of three batches, and process 1 its part of one, and no more."""

    def before(self):
        if len(self.written) < (3, 1)[jax.process_index()]:
            return
        self.wait()
        if jax.process_index() == 1:
            time.sleep(60)
        while np.count_nonzero(self.tokens()) < (3 + 1) * BATCH // 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)


def say(**what):
    print(json.dumps({**what, "process": jax.process_index()}), flush=True)


def extract_into(store, devices, pad_id=0):
    extractor = extractor_over(devices)
    done = extract_to_shared(store, extractor, extractor.place(params()), sequences(), BATCH, pad_id=pad_id)
    say(computed=done.computed, skipped=done.skipped, written=store.written, missing=len(store.missing()))


def main(role, folder):
    devices = np.array(jax.devices()).reshape(PROCESSES, DEVICES)
    if role == "die":
        extract_into(Dying.create_or_open(folder / "store", identity()), devices.reshape(-1, 1))
        return
    extract_into(Watched.create_or_open(folder / "store", identity()), devices.reshape(-1, 1))
    # Each half of the model in another process.
    extract_into(Watched.create_or_open(folder / "across", identity()), devices.T)
    wrong = {
        "across": (identity(), jax.process_index()),
        "chunks": (dataclasses.replace(identity(), samples_per_chunk=BATCH), 0),
    }
    for name, (what, pad_id) in wrong.items():
        try:
            extract_into(Watched.create_or_open(folder / name, what), devices.T, pad_id)
        except ValueError as error:
            say(error=str(error))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    role, process, port, folder = sys.argv[1:]
    jax.distributed.initialize(
        f"localhost:{port}",
        PROCESSES,
        int(process),
        initialization_timeout=30,
        heartbeat_timeout_seconds=20,
        shutdown_timeout_seconds=20,
    )
    main(role, Path(folder))
