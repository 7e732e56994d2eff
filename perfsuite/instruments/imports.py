"""`perf.imports`: what importing a module costs a program at its start."""

import dataclasses
from collections.abc import Sequence

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
        """Import a module in a fresh process, and record the modules and bytes that this imports.

        The standard library does not count, nor what the modules `after` import, which come first. The test fails where
        one of the packages `without` is imported, and says which lines lead there.
        `Budget(imported_modules=, imported_bytes=, started_backends=)` limits the rest: with `started_backends=0` the
        import may start no backend of JAX. Any further module over the baseline fails.
        """
        __tracebackhide__ = True
        limits = self._begin(IMPORTS, budget)
        _check("module", module, (module,))
        _check("without", without, without)
        _check("after", after, after)
        imports = imports_of(module, after)
        measured = self._recorder.measured("imports", module, " modules imported", name=name)
        modules, size, backends = measured.metrics(imports.metrics(measured.name))
        heaviest, started = _lines(imports.heaviest()), _lines(imports.started())
        for metric in (modules, size):
            self._recorder.add(metric)
        self._recorder.add(backends, evidence=Evidence(cause=started))
        self._recorder.apply([_without(self._test, imports, package) for package in without])
        checked = {
            "imported_modules": (modules, heaviest),
            "imported_bytes": (size, heaviest),
            "started_backends": (backends, started),
        }
        for field, limit in limits.items():
            metric, cause = checked[field]
            self._recorder.check_budget(metric, limit, lambda cause=cause: cause)  # type: ignore[misc]
        return imports


def _lines(lines: Sequence[str]) -> str:
    return "\n  ".join(lines)


def _without(test: str, imports: Imports, package: str) -> Gate:
    modules = imports.of(package)
    metric = Metric(f"{imports.name} modules of {package}", len(modules), units.MODULES, "count")
    gate = judge_budget(test, metric, 0)
    if not modules:
        return gate
    cause = _lines(imports.chain(modules[0].name))
    return dataclasses.replace(gate, note=f"importing {imports.name} imports {package}", cause=cause)


def _check(argument: str, given: object, names: object) -> None:
    __tracebackhide__ = True
    if not isinstance(names, tuple | list) or not all(map(_is_module, names)):
        example = "'package.module'" if argument == "module" else "('jax',)"
        raise TypeError(f"perf.imports({argument}={given!r}): give names of modules, such as {argument}={example}")


def _is_module(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
