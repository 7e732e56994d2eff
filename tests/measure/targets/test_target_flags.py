"""The environment of the process that compiles: no variable of this machine reaches it."""

import os

from perfsuite.measure.targets.target_flags import worker_environment


def test_the_worker_sees_the_environment_without_what_belongs_to_this_process():
    environment = worker_environment(
        {
            "HOME": "/home/user",
            "PYTHONPATH": "/code",
            "PYTHONWARNINGS": "error",
            "JAX_PLATFORMS": "cuda",
            "JAX_COMPILATION_CACHE_DIR": "/cache",
            "JAX_TRACEBACK_FILTERING": "off",
            "TPU_WORKER_HOSTNAMES": "a,b",
            "TPU_LIBRARY_PATH": "/other/libtpu.so",
            "LIBTPU_INIT_ARGS": "--flag=1",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --xla_cpu_x=1 --xla_gpu_x --xla_dump_to='/a b'",
        },
        "tpu",
    )
    assert environment["HOME"] == "/home/user"
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == "/code"
    assert environment["LIBTPU_INIT_ARGS"] == "--flag=1"
    assert environment["XLA_FLAGS"] == "--xla_dump_to='/a b'"
    assert environment["JAX_PLATFORMS"] == "cpu"
    dropped = {"PYTHONWARNINGS", "JAX_COMPILATION_CACHE_DIR", "JAX_TRACEBACK_FILTERING", "TPU_WORKER_HOSTNAMES"}
    assert not (dropped | {"TPU_LIBRARY_PATH"}) & set(environment)


def test_the_worker_for_a_gpu_sees_the_flags_of_its_compiler_and_no_gpu_of_this_machine():
    environment = worker_environment(
        {
            "CUDA_VISIBLE_DEVICES": "0",
            "CUDA_HOME": "/usr/local/cuda",
            "LIBTPU_INIT_ARGS": "--flag=1",
            "XLA_FLAGS": "--xla_cpu_x=1 --xla_gpu_x=2 --xla_tpu_x=3 --xla_x=4",
        },
        "cuda",
    )
    assert environment["XLA_FLAGS"] == "--xla_gpu_x=2 --xla_x=4"
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"CUDA_HOME", "LIBTPU_INIT_ARGS"} & set(environment)


def test_flags_may_be_in_a_file(tmp_path):
    (tmp_path / "flags").write_text("--xla_a=1\n--xla_force_host_platform_device_count=8\n")
    assert worker_environment({"XLA_FLAGS": str(tmp_path / "flags")}, "tpu")["XLA_FLAGS"] == "--xla_a=1"
    assert "XLA_FLAGS" not in worker_environment({"XLA_FLAGS": str(tmp_path / "none")}, "tpu")
