"""The instruments of the fixture `perf` that count: what they see is the same on a busy machine and a quiet one."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import NO_BUDGET, Instruments
from perfsuite.measure.call import Call, checked, label_of
from perfsuite.measure.measurement import Metric

if TYPE_CHECKING:
    from perfsuite.measure.compiles.fastpath import FastPath
    from perfsuite.measure.compiles.warmup import Warm
    from perfsuite.measure.runtime.call_transfers import CallTransfers
    from perfsuite.measure.runtime.donation import StepDonation
    from perfsuite.measure.runtime.hostcalls import HostCalls
    from perfsuite.measure.runtime.memory import Memory


class CountedInstruments(Instruments):
    """Compiles, host calls, misses of the fast path, transfers, arrays that live on and arrays kept twice."""

    def warm(
        self, fn: Callable, over: Sequence[tuple | Call], *, budget: Budget = NO_BUDGET, name: str | None = None
    ) -> "Warm":
        """Compile and run every signature in `over`, block, and return the function, warm.

        `over` has tuples of positional arguments, or `call`s. Arrays in tuples are copied first, so that a function
        that donates them leaves the caller's alone. `Budget(compiles=)` limits the backend compiles that it takes.
        """
        __tracebackhide__ = True
        from perfsuite.measure.compiles.warmup import warm

        limits = budget.only("perf.warm", "compiles")
        name = name or label_of(fn)
        # Nothing that is measured here gates as a time, so it may run under the profiler, and it compiles only once.
        with self.traces.keeping_block(self.metrics.unique(f"warming {name}")):
            warmed = warm(fn, over)
        self.metrics.record(
            Metric(self.metrics.unique(f"{name} compile seconds"), warmed.compile_seconds, "s", "info", samples=1)
        )
        if "compiles" in limits:
            made = Metric(self.metrics.unique(f"{name} compiles to warm"), warmed.compiles, "compiles", "count")
            cause = f"{len(warmed.signatures)} signatures were declared; look for one that compiles more than once"
            self.metrics.check_budget(made, limits["compiles"], lambda: cause)
        return warmed

    def no_compiles(self):
        """Context manager: any trace, lowering or compile inside, in any thread, raises `RecompilationError`."""
        from perfsuite.measure.compiles import compiles

        return compiles.forbid()

    def count_compiles(self):
        """Context manager giving `traces`, `lowerings`, `compiles`, `cache_hits` and `by_function`; asserts nothing."""
        from perfsuite.measure.compiles import compiles

        return compiles.count()

    def host_calls(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> "HostCalls":
        """Count the Python and C function calls that one warm call makes: exact, repeatable, any increase fails."""
        __tracebackhide__ = True
        from perfsuite.gate.diagnosis import busiest
        from perfsuite.measure.runtime.hostcalls import host_calls

        limits = budget.only("perf.host_calls", "host_calls")
        counted = host_calls(checked(call, "perf.host_calls"))
        name = self.metrics.unique(name or counted.label, " host calls")
        made = counted.metrics(name)[0]
        self.metrics.record(made)
        self.traces.keep_trace(call, name)
        if "host_calls" in limits:
            self.metrics.check_budget(made, limits["host_calls"], lambda: busiest(counted))
        return counted

    def fast_path(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> "FastPath":
        """Count the calls of jitted functions in one warm call that take JAX's slow path, though nothing compiles.

        `.misses`, `.by_function`, `.reasons`. Any increase over the baseline fails; `Budget(fast_path_misses=)` limits
        them.
        """
        __tracebackhide__ = True
        from perfsuite.instruments.wait_gates import judge_misses
        from perfsuite.measure.compiles.fastpath import fast_path

        limits = budget.only("perf.fast_path", "fast_path_misses")
        made = fast_path(checked(call, "perf.fast_path"))
        judge_misses(self.metrics, self.metrics.unique(name or made.label, " fast-path misses"), made, limits)
        return made

    def no_transfers(self, *, explicit: bool = False):
        """Context manager: any implicit transfer inside, in any thread, or a callback of a program, raises
        `TransferError`. `explicit=True` forbids `jax.device_put`, `jax.device_get` and `copy_to_host_async` too.
        """
        from perfsuite.measure.runtime import transfers

        return transfers.forbid(explicit=explicit)

    def count_transfers(self):
        """Context manager giving `host_to_device`, `device_to_host`, `callbacks`, `explicit` and `by_line`; asserts
        nothing.
        """
        from perfsuite.measure.runtime import transfers

        return transfers.count()

    def transfers(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> "CallTransfers":
        """Count the transfers and callbacks of one warm call, until its outputs are ready; any increase fails.

        `Budget(transfers=)` limits the implicit transfers and the callbacks together.
        """
        __tracebackhide__ = True
        from perfsuite.instruments.transfer_gates import gate_transfers

        return gate_transfers(self.metrics, checked(call, "perf.transfers"), budget, name)

    def memory(self, call: Call, *, steps: int = 30, budget: Budget = NO_BUDGET, name: str | None = None) -> "Memory":
        """Run `steps` steps: `.live_bytes`, `.peak_bytes`, `.leaked_arrays` and `.leaked_bytes` a step, `.grown`,
        `.host_growth_bytes` a step.

        Leaks are exact and gated; the process's growth is held against `Budget(host_growth_bytes=)` only, and fails
        when its whole interval lies above.
        """
        __tracebackhide__ = True
        from perfsuite.instruments.memory_gates import gate_memory

        made = gate_memory(self.metrics, checked(call, "perf.memory"), steps, budget, name)
        if budget.host_growth_bytes is not None and made.host_growth is None:
            self._session.unavailable(
                "perf.memory: this system does not tell how large the process is, so Budget(host_growth_bytes=...) "
                "cannot be checked"
            )
        return made

    def donation(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> "StepDonation":
        """Which arrays of the state that a call carries it keeps in memory twice: `.undonated`, each with its path,
        bytes and reason. `Budget(undonated=)` limits their number.
        """
        __tracebackhide__ = True
        from perfsuite.instruments.memory_gates import gate_donation

        return gate_donation(self.metrics, checked(call, "perf.donation"), budget, name)
