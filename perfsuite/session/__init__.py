"""One pytest session with --perf: from `perf.compare(candidate, reference, Budget(ratio=1.05))` to a failed test.

1. The fixture `perf` (`perfsuite.fixture`) has a `Recorder` for its test. The method `compare` is in
   `instruments.compare`, which is imported when the test asks for it.
2. `CompareInstrument.compare` asks the `Judge` for the limits: those of the budget, and the one that the baseline puts
   on the ratio. It hands the two calls, a `Pair`, to the session's `Mode`.
3. The mode is `fresh.gating`. `Pair.compare` samples both calls (`measure.timing.comparison`) until the limits are
   settled. Where a limit of the budget is broken, a fresh process compares them again: it gets a `Request`, and hands
   back an `Answer`.
4. `gate.limits` judges the budget by both. Where it fails, the instrument looks for the likely cause, and
   `Recorder.apply` raises `BudgetExceeded` with the message of `gate.messages`, at the test's own line.
5. Else the ratio and the overhead are recorded (`Recorder.add`), and the test goes on.
6. When its body has ended, `hooks.gating` has the recorder judge every metric by its baseline (`Judge.judge`, by the
   rules of `gate.verdict`). A fresh process measures again what is sampled and fails. Metrics that the test no longer
   makes are missing. What fails is one `GateFailed`, again with a message of `gate.messages`.
7. The test's results become a `TestRecord` of plain values, also in a worker of pytest-xdist. At the end of the session
   the main process prints, saves (`Judge.save`) and reports them.

`Judge` and `Recorder` know nothing of pytest. `PerfSession` holds the judge, the mode and the records. `group` is
imported only where several processes measure together.
"""
