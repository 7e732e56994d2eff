"""`perf.transfers`, `perf.no_transfers` and `perf.count_transfers`: what moves between host and device."""

from contextlib import AbstractContextManager

from perfsuite.gate.budget import Budget
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.call import Call, checked
from perfsuite.measure.metric import Metric
from perfsuite.measure.private import capabilities
from perfsuite.measure.runtime.transfers import Transfers, count_transfers, forbid_transfers, transfers_of

TRANSFERS = declare(
    "perf.transfers",
    {
        "transfers": "implicit transfers and callbacks of one warm call",
        "blocking_reads": "reads that one warm call waits for",
    },
    private=(capabilities.TRANSFERS,),
)
NO_TRANSFERS = declare("perf.no_transfers", private=(capabilities.TRANSFERS,))
COUNT_TRANSFERS = declare("perf.count_transfers", private=(capabilities.TRANSFERS,))


class TransfersInstrument(Instrument):
    def transfers(self, call: Call, *, budget: Budget = NO_BUDGET, name: str | None = None) -> Transfers:
        """Count the transfers and callbacks of one warm call, and the reads that it waits for; any increase fails.

        `Budget(transfers=)` limits the implicit transfers and the callbacks together, `Budget(blocking_reads=)` the
        reads, explicit ones too.
        """
        __tracebackhide__ = True
        limits = self._begin(TRANSFERS, budget)
        counted = transfers_of(checked(call, "perf.transfers"))
        metrics = self._metrics(TRANSFERS, call.label, counted.metrics, name)
        for metric in metrics:
            self._recorder.add(metric)
        if "transfers" in limits:
            name = metrics[0].name.removesuffix(" host to device transfers")
            total = Metric(f"{name} transfers and callbacks", counted.total, "transfers", "count")
            self._recorder.check_budget(total, limits["transfers"], counted.in_words)
        if "blocking_reads" in limits:
            self._recorder.check_budget(metrics[-1], limits["blocking_reads"], counted.waits_in_words)
        return counted

    def no_transfers(self, *, explicit: bool = False) -> AbstractContextManager[Transfers]:
        """Context manager: any implicit transfer inside, in any thread, or a callback of a program, raises
        `TransferError`. `explicit=True` forbids `jax.device_put`, `jax.device_get` and `copy_to_host_async` too.
        """
        return self._block(NO_TRANSFERS, lambda: forbid_transfers(explicit=explicit))

    def count_transfers(self) -> AbstractContextManager[Transfers]:
        """Context manager giving `host_to_device`, `device_to_host`, `device_to_device`, `callbacks`, `explicit`,
        `blocking_reads` and `by_line`; asserts nothing.
        """
        return self._block(COUNT_TRANSFERS, count_transfers)
