"""This repository's own pytest set-up."""

import glob
import os

import jax
import pytest

pytest_plugins = ["pytester"]

# libtpu is installed for its compiler. With nothing said, jax would look for a TPU with it, in every process of a test,
# and libtpu would write about it to the terminal.
_ACCELERATORS = ("/dev/accel*", "/dev/vfio/[0-9]*", "/dev/nvidia[0-9]*", "/dev/kfd")
if "JAX_PLATFORMS" not in os.environ and not any(map(glob.glob, _ACCELERATORS)):
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")

# Sharding, and an argument that moves to another device, need several. Eight virtual CPU devices leave the timings of
# single-device code as they were: 598 arrays dispatched in 0.90 and 0.91 ms, a 1000 x 1000 product in 9.3 and 9.8 ms
# (2-core x86-64 machine, jax 0.10.2). On an accelerator the setting has no effect.
jax.config.update("jax_num_cpu_devices", 8)


def pytest_configure(config: pytest.Config) -> None:
    """Set up Hypothesis where its plugin is on: without it, it is not used, and takes 0.7 s to import."""
    if not config.pluginmanager.hasplugin("hypothesispytest"):
        return
    import hypothesis  # not on loading, see above

    # Every example compiles: a deadline would measure the machine. CI draws the same examples each time.
    hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
    hypothesis.settings.register_profile("ci", parent=hypothesis.settings.get_profile("default"), derandomize=True)
    hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")
