"""Reading and checking weights, and that the loaders of BERT, Qwen2 and GPT-2 do both."""

import os
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import bert_weights, gpt2_weights, qwen2_weights
from support.gpt2_numpy import randomised
from support.qwen2_numpy import random_state_dict
from support.state_dicts import read_safetensors

from perfsuite.workloads.bert import BertConfig
from perfsuite.workloads.gpt2 import GPT2Config
from perfsuite.workloads.qwen2 import Qwen2Config
from perfsuite.workloads.state_dicts import check_weights

WEIGHTS = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(3, np.float32)}
SHAPES = {"a": (3, 4), "b": (3,)}
check = partial(check_weights, shapes=SHAPES, repeats={"again": "a"}, because="it is tied")


@pytest.fixture
def save():
    return pytest.importorskip(
        "safetensors.numpy", reason="reads .safetensors files: pip install safetensors"
    ).save_file


@pytest.fixture
def file(save, tmp_path):
    save(WEIGHTS, tmp_path / "model-1.safetensors")
    return tmp_path / "model-1.safetensors"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_weights_of_several_files_are_read_as_they_are(save, tmp_path, dtype):
    weights = {name: array.astype(dtype) for name, array in WEIGHTS.items()}
    weights["b"][:] = np.nan, np.inf, -0.0
    files = [tmp_path / f"model-{name}.safetensors" for name in weights]
    for path, (name, array) in zip(files, weights.items(), strict=True):
        save({name: array}, path)
    read = read_safetensors(*files)
    assert {name: array.dtype for name, array in read.items()} == {name: jnp.dtype(dtype) for name in weights}
    assert {name: array.tobytes() for name, array in read.items()} == {n: a.tobytes() for n, a in weights.items()}


def test_no_file_is_an_error(save):
    with pytest.raises(ValueError, match="at least one file"):
        read_safetensors()


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        read_safetensors("model.safetensors")


def test_a_weight_in_two_files_is_an_error_naming_both(save, file, tmp_path):
    save({"c": WEIGHTS["a"], "b": WEIGHTS["b"]}, tmp_path / "model-2.safetensors")
    with pytest.raises(ValueError, match=r"^b is both in .*model-1\.safetensors and in .*model-2\.safetensors$"):
        read_safetensors(file, tmp_path / "model-2.safetensors")


def test_a_damaged_file_is_an_error_naming_it(file):
    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:30], b"", b"<html>not found</html>", whole[:8] + b"x" + whole[9:]):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model-1\.safetensors cannot be read as safetensors: "):
            read_safetensors(file)


def test_a_dtype_that_numpy_has_not_is_an_error_naming_the_file(save, file):
    save({"a": np.ones(3, jnp.float8_e4m3fn)}, file)
    with pytest.raises(ValueError, match=r"model-1\.safetensors cannot be read as safetensors: .*float8_e4m3fn"):
        read_safetensors(file)


def test_a_file_that_cannot_be_opened_is_an_error_naming_it(file, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"model-2\.safetensors"):
        read_safetensors(file, tmp_path / "model-2.safetensors")
    with pytest.raises(OSError, match=tmp_path.name):
        read_safetensors(tmp_path)


def test_a_file_that_may_not_be_read_is_an_error_naming_it(file):
    file.chmod(0)
    if os.access(file, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(PermissionError, match=r"model-1\.safetensors"):
        read_safetensors(file)


def test_every_weight_that_does_not_fit_is_named_with_its_shapes():
    check(WEIGHTS)
    with pytest.raises(ValueError, match="do not fit the configuration") as raised:
        check({"a": np.ones((4, 3), np.int32), "c": np.ones(2), "again": WEIGHTS["a"]})
    assert str(raised.value).split(": ")[1].split("; ") == [
        "a has shape (4, 3), not (3, 4)",
        "a is int32, not floating-point",
        "again differs from a, but it is tied",
        "b is missing, shape (3,)",
        "c is not known, shape (2,)",
    ]


def test_of_a_long_list_the_first_eight_are_named():
    with pytest.raises(ValueError, match=r"u0 is.*; u7 is not known, shape \(1,\); and 2 more$"):
        check({**WEIGHTS, **{f"u{i}": np.ones(1) for i in range(10)}})


def test_a_repeated_weight_must_be_equal_and_may_hold_nan():
    a = WEIGHTS["a"] + np.diag([np.nan] * 4)[:3]
    check({**WEIGHTS, "a": a, "again": a.copy()})
    with pytest.raises(ValueError, match="again differs from a"):
        check({**WEIGHTS, "a": a, "again": np.nan_to_num(a)})


@pytest.fixture(
    params=[
        (bert_weights, BertConfig.tiny(), bert_weights.EMBEDDING),
        (qwen2_weights, Qwen2Config.tiny(), qwen2_weights.EMBEDDING),
        (gpt2_weights, GPT2Config.tiny(), "wte.weight"),
    ],
    ids=["bert", "qwen2", "gpt2"],
)
def loader(request):
    """A random state dict, its `from_state_dict` and `load_safetensors`, and the name of the embedding in it."""
    module, config, name = request.param
    if module is gpt2_weights:
        from_state_dict = partial(module.from_state_dict, config=config)
        load = lambda file, *files: module.load_safetensors(file, config)
        return module.to_state_dict(randomised(config)), from_state_dict, load, name
    weights = random_state_dict(config, module.weight_table(config))
    return weights, partial(module.from_state_dict, config), partial(module.load_safetensors, config), name


def test_every_loader_checks_its_weights(loader):
    weights, from_state_dict, _, name = loader
    rows, columns = weights[name].shape
    for array, message in (
        (weights[name].T, rf"{name} has shape \({columns}, {rows}\), not \({rows}, {columns}\)$"),
        (weights[name].astype(np.int32), f"{name} is int32, not floating-point$"),
    ):
        with pytest.raises(ValueError, match=message):
            from_state_dict({**weights, name: array})
    del weights[name]
    with pytest.raises(
        ValueError, match=rf"{name} is missing, shape \({rows}, {columns}\); x is not known, shape \(2,\)$"
    ):
        from_state_dict({**weights, "x": np.ones(2)})


def test_every_loader_reads_bfloat16_files_and_leaves_nan_as_it_is(loader, save, tmp_path):
    weights, from_state_dict, load_safetensors, name = loader
    weights = {name: array.astype(jnp.bfloat16) for name, array in weights.items()}
    weights[name][1, 2] = np.nan
    files = tmp_path / "model-1.safetensors", tmp_path / "model-2.safetensors"
    # GPT-2's loader takes one file: it then has every weight, and the second is not looked at.
    first = weights if name == "wte.weight" else {name: weights[name]}
    save(first, files[0])
    save({name: array for name, array in weights.items() if name not in first}, files[1])
    read = load_safetensors(*files)
    jax.tree.map(np.testing.assert_array_equal, read, from_state_dict(weights))
    assert sum(int(np.isnan(leaf).sum()) for leaf in jax.tree.leaves(read)) == 1


def test_parameters_are_copies_and_do_not_follow_the_arrays_they_came_from(loader):
    weights, from_state_dict, _, name = loader
    # An array that begins at a multiple of 64 bytes is one that JAX on a CPU would share.
    memory = np.full(weights[name].size + 16, 3, np.float32)
    array = memory[-memory.ctypes.data % 64 // 4 :][: weights[name].size].reshape(weights[name].shape)
    loaded = from_state_dict({**weights, name: array})
    memory[:] = 0
    assert any(np.all(leaf == 3) for leaf in jax.tree.leaves(loaded))
