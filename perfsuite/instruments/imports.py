"""`perf.imports`: what importing a module costs a program at its start."""

import dataclasses
import functools
from collections.abc import Callable

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Evidence, Gate, judge_budget
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure import units
from perfsuite.measure.imports.imports import Imports, imports_of
from perfsuite.measure.metric import Metric
from perfsuite.measure.private.capabilities import BACKEND_START

IMPORTS = declare(
    "perf.imports", budget=("imported_modules", "imported_bytes", "started_backends"), private=(BACKEND_START,)
)


class ImportsInstrument(Instrument):
    def imports(
        self,
        module: str,
        *,
        without: tuple[str, ...] = (),
        after: tuple[str, ...] = (),
        budget: Budget = NO_BUDGET,
        name: str | None = None,
    ) -> Imports:
        """Import a module in a fresh process, and record the modules, files and bytes that this imports.

        The standard library does not count, nor what the modules `after` import, which come first. The test fails where
        one of the packages `without` is imported, and says which lines lead there.
        `Budget(imported_modules=, imported_bytes=, started_backends=)` limits the rest: with `started_backends=0` the
        import may start no backend of JAX. Any further module over the baseline fails.
        """
        __tracebackhide__ = True
        limits = self._begin(IMPORTS, budget)
        _check(module, without=without, after=after)
        seen = imports_of(module, after)
        measured = self._recorder.measured("imports", module, " modules imported", name=name)
        modules, files, size, backends, *told = measured.metrics(seen.metrics(measured.name))
        for metric in (modules, files, size, *told):
            self._recorder.add(metric)
        self._recorder.add(backends, evidence=Evidence(cause="\n  ".join(seen.started())))
        self._recorder.apply([gate for package in without for gate in _without(self._test, seen, package)])
        checked: dict[str, tuple[Metric, Callable[[], list[str]]]] = {
            "imported_modules": (modules, seen.heaviest),
            "imported_bytes": (size, seen.heaviest),
            "started_backends": (backends, seen.started),
        }
        for field, limit in limits.items():
            metric, why = checked[field]
            self._recorder.check_budget(metric, limit, functools.partial(_lines, why))
        return seen


def _lines(why: Callable[[], list[str]]) -> str:
    return "\n  ".join(why())


def _without(test: str, seen: Imports, package: str) -> list[Gate]:
    found = seen.of(package)
    metric = Metric(f"{seen.name} modules of {package}", len(found), units.MODULES, "count")
    gate = judge_budget(test, metric, 0)
    if not gate.failed:
        return [gate]
    return [
        dataclasses.replace(
            gate, note=f"importing {seen.name} imports {package}", cause="\n  ".join(seen.chain(found[0].name))
        )
    ]


def _check(module: object, **names: object) -> None:
    __tracebackhide__ = True
    if not _is_module(module):
        error = ValueError if isinstance(module, str) else TypeError
        raise error(f"perf.imports({module!r}): give the name of a module as a text, such as 'package.module'")
    for argument, given in names.items():
        if not isinstance(given, tuple | list) or not all(map(_is_module, given)):
            raise TypeError(f"perf.imports({argument}={given!r}): give a tuple of modules, such as {argument}=('jax',)")


def _is_module(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
