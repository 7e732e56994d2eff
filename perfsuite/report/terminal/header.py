"""The header of a session with --perf, in the terminal. Every session imports it, so it imports little."""

from pathlib import Path

from packaging.version import Version

import perfsuite
from perfsuite.gate.environment import is_known_kind, namesakes
from perfsuite.measure.io import relative
from perfsuite.measure.words import plural
from perfsuite.session.session import PerfSession


def session_header(session: PerfSession, rootpath: Path) -> list[str]:
    """Device, versions and baseline files, for the top of the session; a line for each named target."""
    environment = session.environment
    named = ((name, getattr(environment, name)) for name in ("jax", "jaxlib", "equinox"))
    versions = [f"{name} {version}" for name, version in named if version]
    devices = f"{environment.device_count} x {environment.device_kind}"
    if environment.process_count > 1:
        devices += f" in {environment.process_count} processes"
    lines = [
        f"{devices} ({environment.processor}), {', '.join(versions)}",
        *_newer(environment.jax),
        *_file_name(session, rootpath),
        f"baselines {_baselines(session, None, rootpath)}, size {session.options.size}",
        *(f"{name}: {_baselines(session, name, rootpath)}" for name in session.options.targets),
    ]
    return [f"perfsuite: {line}" for line in lines]


def _newer(jax: str) -> list[str]:
    """That jax is newer than any that perfsuite was tested with. A rebuilt release, 0.12.0.1 of 0.12.0, is none."""
    newest = perfsuite.tested[-1]
    if Version(jax).release[:3] <= Version(newest).release:
        return []
    return [f"jax {jax} is newer than {newest}, the newest that it knows: what it cannot measure there is skipped"]


def _file_name(session: PerfSession, rootpath: Path) -> list[str]:
    """Where the baseline file's name may surprise: an unknown kind of device, or two kinds of one name."""
    kind, path = session.environment.device_kind, relative(session.path_of(None), rootpath)
    lines = []
    if not is_known_kind(kind):
        lines.append(f"unknown device kind {kind!r}: its baseline file is {path}")
    if others := namesakes(kind, session.baselines_of(None).environments.values()):
        lines.append(f"{path} also has metrics of another kind of device with the same name: {', '.join(others)}")
    return lines


def _baselines(session: PerfSession, target: str | None, rootpath: Path) -> str:
    count = sum(map(len, session.baselines_of(target).metrics.values()))
    none = "no metrics yet" + ("" if session.options.save else ": pytest --perf-save records them")
    recorded = plural(count, "metric") if count else none
    return f"{relative(session.path_of(target), rootpath)} ({recorded})"
