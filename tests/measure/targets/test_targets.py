"""What perfsuite knows about devices, compared with the compilers and with what jax knows about them."""

import dataclasses
import json
import math
import os
import subprocess
import sys

import pytest
from jax.experimental.pallas import tpu as pltpu
from support.cuda_needed import needs_cuda_plugin
from support.libtpu_needed import needs_libtpu

from perfsuite.measure.targets.target_compiler import worker_environment
from perfsuite.measure.targets.targets import GPUS, MEMORY_SHARE, TARGETS, TPUS, peak_rates, target, topology_name

V5E, V4, V7 = TARGETS["tpu-v5e"], TARGETS["tpu-v4"], TARGETS["tpu7x"]

CHIPS = {"tpu-v4": "TPU_V4", "tpu-v5e": "TPU_V5E", "tpu-v5p": "TPU_V5P", "tpu-v6e": "TPU_V6E", "tpu7x": "TPU_7X"}
CORES = {"tpu-v4": 2, "tpu-v5e": 1, "tpu-v5p": 2, "tpu-v6e": 1, "tpu7x": 1}
"""TensorCores of one JAX device."""


def test_a_target_is_found_by_its_name():
    assert target("tpu-v5e").device_kind == "TPU v5 lite"
    with pytest.raises(
        ValueError,
        match=r"no target 'v5e': there are tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e, tpu7x, gpu-t4, gpu-l4, gpu-a100",
    ):
        target("v5e")


@pytest.mark.parametrize(
    ("of", "devices", "name"),
    [
        (V5E, 1, "v5e:2x2"),
        (V5E, 5, "v5e:2x4"),
        (V5E, 256, "v5e:16x16"),
        (V4, 1, "v4:2x2x1"),
        (V7, 8, "tpu7x:2x2x1"),
        (V7, 9, "tpu7x:2x2x2"),
    ],
)
def test_the_smallest_slice_that_holds_the_devices(of, devices, name):
    assert topology_name(of, devices) == name


def test_a_slice_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="tpu-v5e has slices of up to 256 devices, not 257"):
        topology_name(V5E, 257)
    with pytest.raises(ValueError, match="tpu7x has slices of up to 8192 devices"):
        topology_name(V7, 10_000)
    with pytest.raises(ValueError, match="at least 1 device"):
        topology_name(V5E, 0)


@pytest.mark.parametrize("name", CHIPS)
def test_rates_agree_with_those_that_jax_knows(name):
    known = TARGETS[name]
    core = pltpu.get_tpu_info_for_chip(getattr(pltpu.ChipVersion, CHIPS[name]), CORES[name])
    assert known.rates.peak_flops["bf16"] == pytest.approx(core.bf16_ops_per_second * CORES[name], rel=0.01)
    # jax has 2460 GB/s for v5p, 11 % less than Google publishes (jax 0.10.2); the others differ by 2 % at most.
    assert known.rates.memory_bandwidth == pytest.approx(core.mem_bw_bytes_per_second * CORES[name], rel=0.13)
    for dtype in {"int8", "fp8"} & set(known.rates.peak_flops):
        # jax has no int8 rate for v4; Google's page says that it is the one of bf16.
        published = getattr(core, f"{dtype}_ops_per_second") or core.bf16_ops_per_second
        assert known.rates.peak_flops[dtype] == pytest.approx(published * CORES[name], rel=0.01), dtype
    # What a program may use is what is built in, less what the system keeps.
    assert 0.9 < known.memory_bytes / (core.hbm_capacity_bytes * CORES[name]) < 1


def test_rates_of_a_present_device_are_found_by_its_kind():
    for each in TARGETS.values():
        assert peak_rates(each.device_kind) is each.rates
    assert peak_rates("TPU v5e") is V5E.rates
    without_links = dataclasses.replace(target("gpu-a100-40gb").rates, link_bandwidth=None)
    assert peak_rates("NVIDIA A100-PCIE-40GB") == without_links
    assert peak_rates("cpu") is None


PAGES = (
    "https://docs.cloud.google.com/tpu/docs/",
    "https://www.nvidia.com/",
    "https://resources.nvidia.com/",
)


def test_every_rate_says_where_it_is_published():
    for rates in (*(known.rates for known in TARGETS.values()), peak_rates("NVIDIA A100-PCIE-40GB")):
        assert max(rates.peak_flops.values()) > rates.memory_bandwidth > (rates.link_bandwidth or 0)
        assert (rates.link_bandwidth or 1) > (rates.network_bandwidth or 0)
        assert rates.source.startswith(PAGES)


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


TOPOLOGIES = """
import json, sys
from jax.experimental import topologies

devices = [topologies.get_topology_desc(platform=sys.argv[1], **each).devices for each in json.load(sys.stdin)]
print(json.dumps([(each[0].device_kind, len(each), each[-1].process_index) for each in devices]))
"""


def devices_of(platform, topologies):
    """The kind of the devices of each topology, their number, and the number of the last one's host."""
    command = [sys.executable, "-c", TOPOLOGIES, platform]
    environment = worker_environment(os.environ, platform)
    asked = json.dumps(topologies)
    answer = subprocess.run(command, input=asked, env=environment, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


@needs_libtpu
def test_libtpu_has_every_slice_and_its_devices_have_the_targets_kind():
    every = [(tpu, shape, math.prod(shape) * tpu.devices_per_chip) for tpu in TPUS for shape in tpu.slices]
    topologies = [tpu.topology(devices) for tpu, _, devices in every]
    for (_, shape, _), topology in zip(every, topologies, strict=True):
        assert topology["topology_name"].endswith("x".join(map(str, shape)))
    answers = devices_of("tpu", topologies)
    assert [answer[:2] for answer in answers] == [[tpu.device_kind, devices] for tpu, _, devices in every]


@needs_cuda_plugin
def test_xla_reads_every_gpu_and_counts_its_hosts():
    every = [(gpu, devices) for gpu in GPUS for devices in (1, 4, 24)]
    answers = devices_of("cuda", [gpu.topology(devices) for gpu, devices in every])
    assert answers == [[gpu.device_kind, devices, (devices - 1) // 8] for gpu, devices in every]
