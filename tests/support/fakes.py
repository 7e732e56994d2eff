"""A clock, a device and timed blocks of the tests' own, for tests of timing that read no real clock."""

import contextlib
import gc
import random
import time
from types import SimpleNamespace

import jax
import numpy as np

from perfsuite.measure.call import Call
from perfsuite.measure.timing import block
from perfsuite.measure.timing.block import READINGS_PER_BLOCK, Clock, Sample

US = 1_000
MS = 1_000_000


class FakeArray:
    """An output that is ready at a moment of the fake clock."""

    def __init__(self, device, ready_at):
        self.device = device
        self.ready_at = ready_at

    def is_deleted(self):
        return False

    def block_until_ready(self):
        self.device.now = max(self.device.now, self.ready_at) + self.device.waiting_ns
        return self


class FakeDevice:
    """A host and a device in nanoseconds of a clock that only they move.

    `reading_ns` is what it costs to read the clock, `waiting_ns` what it costs to wait for an array that is ready.
    `cpu_ns` is the host's work in `run` alone: a thread that waits or sleeps has none. Readings are multiples of
    `tick_ns`.
    """

    def __init__(self, reading_ns=0, waiting_ns=0, tick_ns=1):
        self.now = 0
        self.tick_ns = tick_ns
        self.cpu_ns = 0
        self.kept = []
        self.reading_ns = reading_ns
        self.waiting_ns = waiting_ns
        self.idle_at = 0
        self.elsewhere_until = 0

    def now_ns(self):
        self.now += self.reading_ns
        return self.now // self.tick_ns * self.tick_ns

    def run(self, host_ns, device_ns=0):
        """Spend `host_ns` on the host, then queue `device_ns` of work on the device."""
        self.now += host_ns
        self.cpu_ns += host_ns
        self.idle_at = max(self.now, self.idle_at) + device_ns
        self.kept.append([])
        return self.output()

    def output(self):
        """One more output of the program that was queued last."""
        self.kept[-1].append(FakeArray(self, self.idle_at))
        return self.kept[-1][-1]

    @contextlib.contextmanager
    def outputs_seen(self):
        self.kept.clear()
        places = lambda: {id(array): place for place, arrays in enumerate(self.kept) for array in arrays}
        yield SimpleNamespace(programs=places)

    @contextlib.contextmanager
    def running_seen(self):
        """Of another thread is what `elsewhere_until` says."""
        yield SimpleNamespace(
            here=lambda: self.idle_at > self.now,
            elsewhere=lambda: self.elsewhere_until > self.now,
            wait=lambda: setattr(self, "now", max(self.now, self.idle_at)),
        )

    def install(self, monkeypatch, resolution_ns=50_000 / READINGS_PER_BLOCK):
        """Replace the clock. By default blocks last 50 us, so that shorter calls run several times a block."""
        monkeypatch.setattr(block, "now_ns", self.now_ns)
        monkeypatch.setattr(block, "clock", lambda: Clock(self.tick_ns, resolution_ns))
        only_what_is_used = {name: getattr(jax, name) for name in ("tree", "tree_util", "block_until_ready")}
        monkeypatch.setattr(block, "outputs_seen", self.outputs_seen)
        monkeypatch.setattr(block, "running_seen", self.running_seen)
        monkeypatch.setattr(block, "jax", SimpleNamespace(Array=FakeArray, **only_what_is_used))
        return self


class FakeSubject:
    """In the place of `block.Subject`: its function returns the `Sample` of its block."""

    calls = 3
    call_ns = 1e5
    harness = Sample(50.0, 150.0)

    def __init__(self, call: Call):
        self.call = call
        self.given_back = 0

    def drain(self):
        """Its calls leave nothing."""

    def give_back(self):
        self.given_back += 1


class FakeBlocks:
    """In the place of `run_block`: what was run in which order, and a clock in seconds that the samples move."""

    def __init__(self):
        self.order = []
        self.subjects = []
        self.collecting = []
        self.seconds = 0.0

    def run_block(self, subject):
        self.order.append(subject.call.label)
        self.collecting.append(gc.isenabled())
        sample = subject.call.fn()
        # Time goes on also where the clock of the blocks is broken.
        self.seconds += abs(sample.to_ready) / 1e9 if sample.to_ready and np.isfinite(sample.to_ready) else 1e-6
        return sample

    def subject(self, call, *, single=False):
        self.subjects.append(FakeSubject(call))
        return self.subjects[-1]

    def install(self, monkeypatch, module, *, bare=False):
        """`bare` leaves out the collector and the listening for compiles, for thousands of simulations."""
        # A collection over all of JAX's objects takes 0.1 s; `test_block.py` has the test that there is one.
        used = {name: getattr(gc, name) for name in ("isenabled", "enable", "disable")}
        monkeypatch.setattr(block, "gc", SimpleNamespace(collect=lambda: None, **used))
        monkeypatch.setattr(block, "clock", lambda: Clock(0, 0))
        monkeypatch.setattr(module, "run_block", self.run_block)
        monkeypatch.setattr(module, "Subject", self.subject, raising=False)
        monkeypatch.setattr(
            module, "subjects_alike", lambda *calls: [self.subject(call) for call in calls], raising=False
        )
        monkeypatch.setattr(module, "rounding_us", lambda *subjects: 0.0, raising=False)
        monkeypatch.setattr(
            module, "time", SimpleNamespace(monotonic=lambda: self.seconds, perf_counter=time.perf_counter)
        )
        if hasattr(module, "random"):
            # The order of the sides decides which samples count: another one in each run would be another estimate.
            draws = random.Random(0)
            seeded = SimpleNamespace(
                Random=lambda seed: random.Random(draws.random() if seed is None else seed), shuffle=draws.shuffle
            )
            monkeypatch.setattr(module, "random", seeded)
        if bare:
            monkeypatch.setattr(module, "steady", lambda *subjects: contextlib.nullcontext())
        return self


def takes(*samples_us, name="step"):
    """A function for `FakeBlocks`: its blocks take these microseconds to be ready, in turn and from the start again.

    A pair of numbers is the time to return and to be ready; an exception is raised.
    """
    state = SimpleNamespace(calls=0)

    def fn():
        sample = samples_us[state.calls % len(samples_us)]
        state.calls += 1
        if isinstance(sample, BaseException):
            raise sample
        to_return, to_ready = sample if isinstance(sample, tuple) else (sample, sample)
        return Sample(to_return * 1e3, to_ready * 1e3)

    fn.__name__ = name
    return fn
