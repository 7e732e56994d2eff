"""`perf.imports`: what importing a module costs a program at its start."""

import dataclasses
from collections import Counter

from perfsuite.gate.budget import Budget
from perfsuite.gate.verdict import Result, judge_budget
from perfsuite.instruments.base import NO_BUDGET, Instrument, declare
from perfsuite.measure.imports import Imports, imports_of
from perfsuite.measure.metric import MODULES, Metric
from perfsuite.measure.private.capabilities import BACKEND_START

IMPORTS = declare(
    "perf.imports",
    {
        "imported_modules": "modules that an import imports",
        "started_backends": "backends of JAX that an import starts",
    },
    private=(BACKEND_START,),
)
_SHOWN = 5


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
        """Import a module in a fresh process, and record the modules that this imports.

        The standard library does not count, nor what the modules `after` import, which come first. The test fails where
        one of the packages `without` is imported, and says which lines lead there.
        `Budget(imported_modules=, started_backends=)` limits the rest: with `started_backends=0` the import may start
        no backend of JAX. Any further module over the baseline fails.
        """
        __tracebackhide__ = True
        limits = self._begin(IMPORTS, budget)
        for argument, names in (("module", (module,)), ("without", without), ("after", after)):
            if not isinstance(names, tuple | list) or not all(map(_is_module, names)):
                raise TypeError(f"perf.imports({argument}=...): {names!r} are no modules, such as ('jax.numpy',)")
        imports = imports_of(module, after)
        metrics = self._metrics(IMPORTS, module, imports.metrics, name)
        for metric in metrics:
            self._recorder.add(metric)
        self._recorder.apply([_without(self._test, imports, package) for package in without])
        for field, metric in zip(IMPORTS.budget, metrics, strict=True):
            if field in limits:
                self._recorder.check_budget(metric, limits[field], lambda metric=metric: _largest(metric))  # type: ignore[misc]
        return imports


def _largest(metric: Metric) -> str:
    """The packages or backends with the most of it, and their lines."""
    parts, places = Counter(metric.detail).most_common(_SHOWN), metric.places or {}
    return "\n  ".join(f"{name}: {value:,}, first at {places.get(name, '?')}" for name, value in parts)


def _without(test: str, imports: Imports, package: str) -> Result:
    modules = imports.of(package)
    metric = Metric(f"{imports.name} modules of {package}", len(modules), MODULES, "count")
    result = judge_budget(test, metric, 0)
    if not modules:
        return result
    cause = "\n  ".join(imports.chain(modules[0].name))
    return dataclasses.replace(result, note=f"importing {imports.name} imports {package}", cause=cause)


def _is_module(name: object) -> bool:
    return isinstance(name, str) and all(part.isidentifier() for part in name.split("."))
