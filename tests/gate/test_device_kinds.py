"""Which file the metrics of a device go to, for the kinds that JAX names and for any other."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perfsuite.gate.environment import device_slug
from perfsuite.measure.targets.targets import GPUS, TARGETS
from perfsuite.measure.targets.targets import TPUS as TPU_TARGETS

NVIDIA = ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-40GB", "NVIDIA GeForce RTX 4090", "Tesla T4")
TPUS = (
    *("TPU v4", "TPU v5 lite", "TPU v5e", "TPU v5", "TPU v5p", "TPU v6 lite", "TPU v6e"),
    *("TPU7", "TPU7x", "TPU v7x", "TPU8i"),
)
"""As jax 0.10.2 has them in its `mesh_utils` and pallas' `tpu_info`, and as libtpu's topologies say."""
UNKNOWN = ("AMD Instinct MI350X", "gfx950:sramecc+:xnack-", "Apple M3 Max", "TPU9x", "CPU", "interpreter", "", "nul")


def test_every_tpu_target_has_the_file_of_its_device():
    assert [device_slug(target.device_kind) for target in TPU_TARGETS] == [target.name for target in TPU_TARGETS]


def test_no_gpu_target_has_the_file_of_its_device():
    """What is compiled without the device is compiled without autotuning, and so is another program than there."""
    assert not {device_slug(target.device_kind) for target in GPUS} & set(TARGETS)


@pytest.mark.parametrize(
    ("kind", "slug"),
    [
        ("AMD Instinct MI350X", "amd-instinct-mi350x"),
        ("gfx950:sramecc+:xnack-", "gfx950-sramecc-xnack-66043141"),
        ("gfx950:sramecc-:xnack+", "gfx950-sramecc-xnack-a8424046"),
        ("../../etc/passwd", "etc-passwd-3754d6cb"),
        ("nul", "nul-99e62427"),
        ("", "device-e3b0c442"),
        ("\u8bbe\u5907", "device-e1506406"),
        ("x" * 500, "x" * 64 + "-c38c2bf3"),
    ],
)
def test_another_kind_has_a_file_of_its_own(kind, slug):
    assert device_slug(kind) == slug


KINDS = st.one_of(st.text(), st.text("aA1 -_:+./\\", max_size=12), st.sampled_from([*TPUS, *NVIDIA, *UNKNOWN]))


@given(KINDS)
@example("\udcff")
@example("a" * 5000)
def test_any_kind_gives_a_name_that_every_file_system_takes(kind):
    slug = device_slug(kind)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
    assert len(slug) < 80
    assert slug not in ("con", "nul", "aux", "prn", "com1", "lpt1")
    assert device_slug(kind) == slug


@given(KINDS, KINDS)
@example("gfx950:sramecc+:xnack-", "gfx950:sramecc-:xnack+")
@example("Foo Bar", "foo-bar")
def test_two_kinds_share_a_file_only_where_they_differ_in_case_and_hyphens(one, other):
    if device_slug(one) == device_slug(other) and "tpu" not in device_slug(one):
        assert one.lower().strip().replace(" ", "-") == other.lower().strip().replace(" ", "-")
