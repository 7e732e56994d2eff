"""The GPUs that programs are compiled for: their topologies, their memory, and the text that XLA reads them from."""

import dataclasses
import json
import os
import subprocess
import sys
import textwrap

import pytest
from support.cuda_needed import needs_cuda_plugin

from perfsuite.measure.targets.gpu_targets import GPUS, MEMORY_SHARE
from perfsuite.measure.targets.target_flags import worker_environment
from perfsuite.measure.targets.targets import TARGETS, peak_rates, target

H100 = target("gpu-h100")


@pytest.mark.parametrize(
    ("devices", "topology"),
    [(1, "1x1x1"), (2, "1x1x2"), (8, "1x1x8"), (9, "2x1x8"), (16, "2x1x8"), (128, "16x1x8"), (4096, "512x1x8")],
)
def test_the_fewest_hosts_that_hold_the_devices(devices, topology):
    assert H100.topology(devices)["topology"] == topology


def test_a_topology_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="gpu-h100 has topologies of up to 4096 GPUs, not 4097"):
        H100.topology(4097)
    with pytest.raises(ValueError, match="at least 1 device"):
        H100.topology(0)
    with pytest.raises(ValueError, match="gpu-h100 has no slices: leave slices=2 out, and ask for chips= GPUs"):
        H100.topology(16, slices=2)


@pytest.mark.parametrize("gpu", GPUS, ids=[gpu.name for gpu in GPUS])
def test_a_program_may_use_the_share_of_the_memory_that_jax_allocates(gpu):
    assert gpu.memory_bytes == int(MEMORY_SHARE * gpu.device_memory_bytes)
    # What the driver has is at most what the name of the device promises, in GB.
    promised = {"gpu-t4": 16, "gpu-l4": 24, "gpu-a100-40gb": 42.5, "gpu-h200": 151, "gpu-b200": 192}.get(gpu.name, 86)
    assert 0.88 < gpu.device_memory_bytes / 1e9 / promised <= 1.03


def test_rates_of_a_present_gpu_are_found_by_its_kind():
    for gpu in GPUS:
        assert TARGETS[gpu.name] is gpu
        assert peak_rates(gpu.device_kind) is gpu.rates
    module = target("gpu-a100-40gb").rates
    assert peak_rates("NVIDIA A100-PCIE-40GB") == dataclasses.replace(module, link_bandwidth=None)


TOPOLOGIES = """
import json, sys
from jax.experimental import topologies

found = []
for arguments in json.load(sys.stdin):
    devices = topologies.get_topology_desc(platform="cuda", **arguments).devices
    found.append((devices[0].device_kind, len(devices), devices[-1].process_index))
print(json.dumps(found))
"""


@needs_cuda_plugin
def test_xla_reads_every_gpu_and_counts_its_hosts():
    asked = [gpu.topology(devices) for gpu in GPUS for devices in (1, 4, 24)]
    expected = [[gpu.device_kind, devices, (devices - 1) // 8] for gpu in GPUS for devices in (1, 4, 24)]
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(TOPOLOGIES)],
        input=json.dumps(asked),
        env=worker_environment(os.environ, "cuda"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(found.stdout) == expected
