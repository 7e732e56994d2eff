"""The table of docs/verdicts.md, from the saved calibration.

    python tests/promise/calibration_table.py

writes it into the page; `tests/docs/test_docs.py` checks that it is there.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from perfsuite.gate.calibration_file import Calibrated, builds_seen, load_calibration
from perfsuite.measure.timing.calibrating import Builds

ROOT = Path(__file__).parents[2]
FILE = ROOT / "baselines" / "calibration-cpu.json"
PAGE = ROOT / "docs" / "verdicts.md"
BETWEEN = re.compile(r"(<!-- calibration: [^\n]*-->\n).*?(<!-- end of calibration -->\n)", re.DOTALL)

SIZES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.10)


def table() -> str:
    """Every workload, on a quiet and on a busy machine, the sums of both, and the environments."""
    saved = load_calibration(FILE)
    head = ["workload", "machine", "A/A gates", "false alarms", *(f"+{size:.3g} %" for size in _percent(SIZES))]
    rows = [[*head, "99 in 100"], ["---"] * (len(head) + 1)]
    rows += [_row(each.workload, each.busy, [each], each.found.effect) for each in saved]
    rows += [_row("all", busy, [each for each in saved if each.busy is busy], None) for busy in (False, True)]
    if any(each.builds for each in saved):
        for row, cell in zip(rows, ["builds", "---", *(_scatter(each.builds) for each in saved), "", ""], strict=True):
            row.append(cell)
    environments = sorted(
        {
            f"{each.environment.processor}, {each.environment.device_count} x {each.environment.device_kind}, "
            f"Python {each.environment.python}, jax {each.environment.jax}, equinox {each.environment.equinox}"
            for each in saved
        }
    )
    differ = builds_seen(saved)
    builds = "" if differ is None else f"Two builds of the same code differ by up to {100 * differ:.2g} % (95 %). "
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"\n{lines}\n\n{builds}Made on: {'; '.join(environments)}.\n\n"


def _row(name: str, busy: bool, parts: Iterable[Calibrated], effect: float | None) -> list[str]:
    found = [each.found for each in parts]
    caught = []
    for size in SIZES:
        tried = [each.caught[size] for each in found if size in each.caught]
        caught.append(f"{sum(n for n, _ in tried)} of {sum(of for _, of in tried)}" if tried else "")
    gates, alarms = sum(each.gates for each in found), sum(each.alarms for each in found)
    slowdown = "" if effect is None else f"+{100 * effect:.1f} %"
    return [name, "busy" if busy else "quiet", str(gates), str(alarms), *caught, slowdown]


def _scatter(builds: Builds | None) -> str:
    return "" if builds is None else f"{builds.count}: {100 * builds.spread:.2g} %"


def _percent(sizes: Iterable[float]) -> list[float]:
    return [100 * size for size in sizes]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BETWEEN.sub(lambda match: match[1] + table() + match[2], text), encoding="utf-8")
