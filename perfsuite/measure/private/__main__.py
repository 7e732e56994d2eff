"""`python -m perfsuite.measure.private`: each capability, whether it works here, its names, and what its loss costs.

Ends with status 1 where one is lost. Of a library that is not installed nothing can be lost.
"""

import importlib.metadata
import sys

from perfsuite import tested
from perfsuite.measure.compiler_stderr import compilers_silenced
from perfsuite.measure.private.capabilities import CAPABILITIES, Capability


def lines_of(capability: Capability) -> list[str]:
    """What is known of one capability."""
    try:
        version = importlib.metadata.version(capability.library)
    except importlib.metadata.PackageNotFoundError:
        return [f"{capability.name}: {capability.library} is not installed"]
    lost = capability.lost()
    lines = [f"{capability.name}: {'LOST' if lost else 'works'} with {capability.library} {version}"]
    lines += [f"  {lost}"] if lost else []
    lines += [f"  to {capability.purpose}; without it {capability.without}"]
    for declared in capability.names():
        variables = ", ".join(getattr(declared, "locals", ()))
        missing = f" MISSING: {words}" if (words := declared.missing()) else ""
        lines.append(f"    {declared}{variables and f' ({variables})'}{missing}")
    return lines


def main() -> int:
    """Print the table. Returns the exit status."""
    with compilers_silenced():
        tables = list(map(lines_of, CAPABILITIES))
    print("\n".join("\n".join(lines) for lines in tables))
    names = sum(len(each.names()) for each in CAPABILITIES)
    lost = [each.name for each in CAPABILITIES if each.lost()]
    print(f"{len(CAPABILITIES)} capabilities with {names} private names, tested with jax {' to '.join(tested)}")
    print(f"lost: {', '.join(lost) or 'none'}")
    return bool(lost)


if __name__ == "__main__":
    sys.exit(main())
