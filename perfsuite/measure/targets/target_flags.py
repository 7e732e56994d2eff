"""The environment of the process that compiles for a target, and the flags in it."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

# Flags about this machine or another backend. In the cache's key they would make one program look like two.
_HOST_FLAGS = ("--xla_force_host_platform_device_count", "--xla_cpu_")
_FLAGS_OF_OTHERS = {"tpu": "--xla_gpu_", "cuda": "--xla_tpu_"}

# JAX_* arrives through CONFIG; TPU_* and CUDA_* describe this machine's own devices; the others would only slow or
# break it.
_DROPPED_PREFIXES = (
    *("JAX_", "TPU_", "PJRT_", "CUDA_", "NVIDIA_"),
    *("PYTHONWARNINGS", "PYTHONDEVMODE", "PYTHONINSPECT", "PYTHONPROFILE"),
)

_OF_PLATFORM = {
    "tpu": {
        # Else it asks Google Cloud's metadata server what machine this is, and waits for an answer.
        "TPU_SKIP_MDS_QUERY": "1",
        # Else a second process that loads libtpu ends with an error about /tmp/libtpu_lockfile.
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        # Else it writes log files to /tmp/tpu_logs.
        "TPU_LOG_DIR": "disabled",
    },
    # The GPUs of this machine have nothing to do with the target.
    "cuda": {"CUDA_VISIBLE_DEVICES": ""},
}


def worker_environment(environment: Mapping[str, str], platform: str) -> dict[str, str]:
    """The environment variables of the worker that compiles for "tpu" or "cuda", from those of this process."""
    kept = {name: value for name, value in environment.items() if not name.startswith(_DROPPED_PREFIXES)}
    if platform != "tpu":
        kept.pop("LIBTPU_INIT_ARGS", None)
    flags = parsed_flags(_flags_text(kept.pop("XLA_FLAGS", "")))
    flags = {
        name: value for name, value in flags.items() if not name.startswith((*_HOST_FLAGS, _FLAGS_OF_OTHERS[platform]))
    }
    if flags:
        kept["XLA_FLAGS"] = " ".join(
            name if value is None else f"{name}={shlex.quote(value)}" for name, value in flags.items()
        )
    root = Path(__file__).parents[3]
    if root.name not in ("site-packages", "dist-packages"):
        # Only pytest's `pythonpath` may lead to this perfsuite.
        kept["PYTHONPATH"] = os.pathsep.join([*filter(None, [kept.get("PYTHONPATH")]), str(root)])
    return kept | {"JAX_PLATFORMS": "cpu"} | _OF_PLATFORM[platform]


def _flags_text(value: str) -> str:
    """The flags in XLA_FLAGS, which may also be the name of a file that holds them."""
    if not value.strip() or value.lstrip().startswith("-"):
        return value
    try:
        return Path(value.strip()).read_text(encoding="utf-8")
    except OSError:
        return ""


def parsed_flags(text: str) -> dict[str, str | None]:
    """The flags in a text by name, sorted; of one given twice the last counts."""
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without its end: the compiler decides what it means
        words = text.split()
    parts = [word.partition("=") for word in words]
    return dict(sorted({name: value if equals else None for name, equals, value in parts}.items()))
