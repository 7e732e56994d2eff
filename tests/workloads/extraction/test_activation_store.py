import contextlib
import http.server
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.parse
import uuid
from pathlib import Path

import numpy as np
import pytest

from perfsuite.workloads.extraction.activation_store import ActivationStore, StoreError
from perfsuite.workloads.extraction.batching import Batch, BatchActivations, fixed_size_batches

from .stores import LENGTHS, assert_holds, batches, files, identity, refused, samples, stored


class Bucket(http.server.BaseHTTPRequestHandler):
    """As much of Google Cloud Storage as tensorstore asks for. A test may hold back, or refuse, what is uploaded."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        objects, name = self.server.objects, urllib.parse.unquote(url.path.partition("/o/")[2])
        if not name:
            (start,), (end,) = query["startOffset"], query["endOffset"]
            found = [{"name": each, "generation": "1"} for each in sorted(objects) if start <= each < end]
            return self.answer(200, json.dumps({"items": found}).encode())
        if name not in objects:
            return self.answer(404)
        generation, content = objects[name]
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not wanted:
            return self.answer(200, content, x_goog_generation=generation)
        if wanted[1]:
            start, stop = int(wanted[1]), min(int(wanted[2] or len(content)) + 1, len(content))
        else:
            start, stop = len(content) - int(wanted[2]), len(content)
        part = f"bytes {start}-{stop - 1}/{len(content)}"
        return self.answer(206, content[start:stop], x_goog_generation=generation, Content_Range=part)

    def do_POST(self):
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        content = self.rfile.read(int(self.headers["Content-Length"]))
        (name,), server = query["name"], self.server
        with server.uploading:
            server.begun.append(name)
            server.uploading.notify_all()
        if status := server.before(name):
            return self.answer(status)
        with server.uploading:
            generation = server.objects.get(name, (0, b""))[0]
            if int(query.get("ifGenerationMatch", [generation])[0]) != generation:
                return self.answer(412)
            server.objects[name] = generation + 1, content
        return self.answer(200, json.dumps({"name": name, "generation": str(generation + 1)}).encode())


@pytest.fixture(scope="module")
def server():
    """One for all tests: tensorstore reads its address once."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    server.daemon_threads = True
    server.objects = {}
    server.uploading = threading.Condition()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://127.0.0.1:{server.server_port}")
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
        yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def bucket(server):
    """An empty bucket that takes everything. `begun`: names of uploads; `before(name)`: a status to refuse one with."""
    server.objects.clear()
    server.begun = []
    server.before = lambda name: None
    return server


@pytest.fixture(params=["folder", "file", "memory", "gs"])
def location(request, tmp_path):
    if request.param == "gs":
        request.getfixturevalue("bucket")
    return {
        "folder": tmp_path / "a folder, 100 %",
        "file": (tmp_path / "folder").as_uri(),
        "memory": f"memory://{uuid.uuid4()}/",
        "gs": "gs://bucket/a/folder",
    }[request.param]


def test_a_store_holds_what_was_written_wherever_it_is(location):
    done = list(batches())
    store = stored(ActivationStore.create_or_open(location, identity()), done)
    assert_holds(store, samples(done))
    again = ActivationStore.open(location)
    assert again.identity == identity()
    assert len(again) == 10
    assert again.tokens().tolist() == list(LENGTHS)
    assert_holds(again, samples(done))
    assert_holds(ActivationStore.create_or_open(location, identity()), samples(done))


def test_a_half_written_store_goes_on(location):
    done = list(batches())
    stored(ActivationStore.create_or_open(location, identity()), done[:1])
    again = ActivationStore.create_or_open(location, identity())
    assert again.missing().tolist() == [4, 5, 6, 7, 8, 9]
    assert_holds(stored(again, done[1:]), samples(done))


def test_what_a_smaller_dtype_cannot_hold_is_an_error_that_names_the_sample(tmp_path):
    done = list(batches())
    done[1].values[2, 0, 1, 3] = -70000
    store = ActivationStore.create_or_open(tmp_path, identity(dtype="float16"))
    with pytest.raises(StoreError, match=r"sample 6 has activations up to 70000\.0, beyond float16"):
        stored(store, done)
    assert store.missing().tolist() == [4, 5, 6, 7]


def test_padding_is_not_stored(tmp_path):
    """Neither rows nor tokens: the same bytes, whatever is in them."""
    for name, padding in (("a", 0), ("b", np.nan)):
        done = list(batches(16))
        for one in done:
            one.values[~np.broadcast_to(one.batch.mask[:, None, :, None], one.values.shape)] = padding
        stored(ActivationStore.create_or_open(tmp_path / name, identity()), done)
    a, b = ([content for content, _ in files(tmp_path / name).values()] for name in "ab")
    assert sorted(a) == sorted(b)


def test_samples_are_read_one_by_one_and_by_slices(tmp_path):
    done = list(batches())
    store = stored(ActivationStore.create_or_open(tmp_path, identity()), done)
    expected = samples(done)
    for index in (0, 5, 9, np.int64(3)):
        assert np.array_equal(store.read(index), expected[int(index)])
    assert np.array_equal(store.read(-1), expected[9])
    for which in (slice(2, 9), slice(None), slice(-3, None), slice(4, 4), slice(7, 3), slice(8, 100)):
        found = store.read(which)
        assert len(found) == len(range(10)[which])
        assert all(np.array_equal(a, expected[i]) for a, i in zip(found, range(10)[which], strict=True))


def test_reading_a_sample_reads_neither_the_chunks_other_samples_nor_all_of_its_object(bucket):
    """The object's index and the sample: what the store's layout is for."""
    stored(ActivationStore.create_or_open("gs://bucket/x", identity()), batches())
    sent = []
    answer = Bucket.answer
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "answer", lambda self, status, body=b"", **more: (sent.append(len(body)), answer(self, status, body, **more)))  # fmt: skip
        store = ActivationStore.open("gs://bucket/x")
        sent.clear()
        store.read(2)
    whole = len(bucket.objects["x/activations/c/0/0/0/0"][1])
    assert sum(sent) < 0.7 * whole


# What can go wrong


@pytest.mark.parametrize("damage", ["lost", "truncated", "changed"])
def test_a_damaged_object_is_an_error_and_never_other_numbers(tmp_path, damage):
    stored(ActivationStore.create_or_open(tmp_path, identity()), batches())
    chunk = tmp_path / "activations/c/1/0/0/0"
    content = chunk.read_bytes()
    if damage == "lost":
        chunk.unlink()
    else:
        chunk.write_bytes(
            content[:-9] if damage == "truncated" else content[:100] + bytes([content[100] ^ 1]) + content[101:]
        )
    store = ActivationStore.open(tmp_path)
    with refused(tmp_path, str(tmp_path), "samples 4 to 7 cannot be read"):
        store.read(slice(4, 8))
    assert store.read(0).any()


def rows(indices, lengths=None):
    """A batch with those samples in its rows."""
    indices = np.array(indices, np.int64)
    lengths = np.where(indices >= 0, 2, 0) if lengths is None else np.array(lengths)
    mask = np.arange(6) < lengths[:, None]
    batch = Batch(np.zeros(mask.shape, np.int32), mask, lengths.astype(np.int32), indices, indices >= 0)
    return BatchActivations(batch, np.ones((len(indices), 2, 6, 16), np.float32))


@pytest.mark.parametrize(
    "indices",
    [[0, 1, 2], [1, 2, 3, 4], [0, 1, 3, 2], [0, 1, 2, 3, 4], [8], [8, 9, 10, 11], [12, 13, 14, 15], [3, 2, 1, 0]],
)
def test_rows_that_are_not_whole_chunks_are_refused_before_anything_is_written(tmp_path, indices):
    store = ActivationStore.create_or_open(tmp_path, identity())
    before = files(tmp_path)
    with pytest.raises(ValueError, match=r"in whole chunks of 4 of its 10 samples, got the samples \[") as error:
        store.write(rows(indices))
    assert str(indices) in str(error.value)
    store.close()
    assert files(tmp_path) == before


def large_batches(lengths):
    """Up to 8 kB a sample, which random numbers keep when they are compressed."""
    for batch in fixed_size_batches([[1] * n for n in lengths], 4, length=64, pad_id=0):
        values = np.random.default_rng(0).normal(size=(4, 2, 64, 16)).astype(np.float32)
        yield BatchActivations(batch, values)


@contextlib.contextmanager
def files_of_at_most(size):
    """Writing more to a file is an error, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_failed_write_is_an_error_that_names_the_samples_and_the_rest_is_kept(tmp_path):
    """Samples of a token fit under the limit, those of 64 do not."""
    done = list(large_batches((1, 1, 1, 1, 64, 64, 64, 64, 1, 1)))
    store = ActivationStore.create_or_open(tmp_path, identity(length=64))
    with files_of_at_most(16384), pytest.raises(StoreError) as error:
        stored(store, done)
    assert str(tmp_path) in str(error.value)
    assert "samples 4 to 7 could not be written, what was written before is there" in str(error.value)
    assert "File too large" in str(error.value)
    expected = samples(done)
    again = ActivationStore.create_or_open(tmp_path, identity(length=64))
    assert_holds(again, {index: expected[index] for index in (0, 1, 2, 3, 8, 9)})
    assert_holds(stored(again, done[1:2]), expected)


# Order and overlap, on a bucket that shows and steers its uploads


def is_chunk(name):
    return "activations/c" in name


def test_a_sample_is_marked_only_after_its_activations_are_there(bucket):
    """When an upload of tokens begins, the activations of the same chunk have ended."""
    early = []

    def before(name):
        if "tokens/c" in name:
            early.append(f"x/activations/c/{name[-1]}/0/0/0" not in bucket.objects)

    bucket.before = before
    stored(ActivationStore.create_or_open("gs://bucket/x", identity()), batches())
    assert early == [False] * 3


def test_activations_that_were_refused_leave_their_samples_unmarked(bucket):
    done = list(batches())
    bucket.before = lambda name: 403 if is_chunk(name) and "/c/1/" in name else None
    with pytest.raises(StoreError, match=r"gs://bucket/x: samples 4 to 7 could not be written.*403"):
        stored(ActivationStore.create_or_open("gs://bucket/x", identity()), done)
    assert ActivationStore.open("gs://bucket/x").missing().tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("in_flight", [1, 2])
def test_write_returns_before_the_chunk_is_there_and_waits_when_too_many_are_on_their_way(bucket, in_flight):
    held = threading.Event()
    bucket.before = lambda name: None if not is_chunk(name) or held.wait(20) else 503
    store = ActivationStore.create_or_open("gs://bucket/x", identity(), in_flight=in_flight)
    done = list(batches())
    for one in done[:in_flight]:
        store.write(one)
    with bucket.uploading:
        assert bucket.uploading.wait_for(lambda: sum(map(is_chunk, bucket.begun)) == in_flight, 20)
    assert not any(map(is_chunk, bucket.objects))
    late = threading.Thread(target=store.write, args=(done[in_flight],))
    late.start()
    late.join(0.2)
    waits, begun = late.is_alive(), sum(map(is_chunk, bucket.begun))
    held.set()
    late.join(20)
    store.close()
    assert (waits, begun) == (True, in_flight)
    assert_holds(store, samples(done[: in_flight + 1]))


def test_of_processes_that_make_different_stores_at_once_one_gets_its_store_and_the_others_an_error(bucket):
    """The other one's metadata arrives when this one has seen that there is none."""
    ActivationStore.create_or_open("gs://bucket/x", identity(weights="the other's"))
    theirs = dict(bucket.objects)
    bucket.objects.clear()
    bucket.before = lambda name: bucket.objects.update(theirs)
    with pytest.raises(StoreError, match="weights \"the other's\", not 'one'"):
        ActivationStore.create_or_open("gs://bucket/x", identity())
    assert bucket.objects == theirs


# Several processes

PRELUDE = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from workloads.extraction.test_activation_store import ActivationStore, batches, identity, stored

path, part = sys.argv[1], int(sys.argv[2])
"""


def start(code, *arguments):
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, arguments)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_processes_write_a_store_at_once_and_one_that_is_killed_marks_no_sample_that_is_not_there(tmp_path):
    """Killed at the worst moment: the activations of its last chunk are there, the tokens are not."""
    code = """
        print("ready", flush=True)
        input()
        store = ActivationStore.create_or_open(path, identity(samples=24), in_flight=1)

        class Killed:
            def __getitem__(self, which):
                if which.start == 20:
                    os.kill(os.getpid(), signal.SIGKILL)
                return tokens[which]

        tokens, store._tokens = store._tokens, Killed()
        done = list(batches(lengths=[1 + i % 6 for i in range(24)]))
        stored(store, done[part::2])
        """
    processes = [start(code, tmp_path, part) for part in (0, 1)]
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.enter_context(process)
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.wait(120) for process in processes] == [0, -signal.SIGKILL]
    done = list(batches(lengths=[1 + i % 6 for i in range(24)]))
    assert (tmp_path / "activations/c/5/0/0/0").exists()
    store = ActivationStore.create_or_open(tmp_path, identity(samples=24))
    assert_holds(store, samples(done[:5]))
    assert_holds(stored(store, done[5:]), samples(done))


def test_arrays_that_the_store_does_not_take_are_refused(tmp_path):
    store = ActivationStore.create_or_open(tmp_path, identity())
    (first, *_) = batches()
    with pytest.raises(ValueError, match=r"takes float32 of shape \(4, 2, 6, 16\), got float64 of shape"):
        store.write(BatchActivations(first.batch, first.values.astype(np.float64)))
    with pytest.raises(ValueError, match=r"got float32 of shape \(4, 1, 6, 16\)"):
        store.write(BatchActivations(first.batch, first.values[:, :1]))
    with pytest.raises(ValueError, match=r"holds samples of 1 to 6 tokens, got 0 to 9"):
        store.write(rows([0, 1, 2, 3], [0, 9, 1, 1]))
    with pytest.raises(StoreError, match="was opened to be read"):
        ActivationStore.open(tmp_path).write(first)
    with pytest.raises(ValueError, match="in_flight must be at least 1, got 0"):
        ActivationStore.create_or_open(tmp_path, identity(), in_flight=0)


def test_an_error_of_a_write_does_not_hide_the_callers_and_is_its_note(tmp_path):
    done = list(batches())
    store = ActivationStore.create_or_open(tmp_path, identity())
    with files_of_at_most(500), pytest.raises(KeyError, match="of the caller") as error, store:  # noqa: PT012
        store.write(done[0])
        raise KeyError("of the caller")
    assert "samples 0 to 3 could not be written" in error.value.__notes__[0]


def test_several_errors_are_told_together(bucket):
    bucket.before = lambda name: 403 if is_chunk(name) else None
    store = ActivationStore.create_or_open("gs://bucket/x", identity(), in_flight=3)
    for one in batches():
        store.write(one)
    with pytest.raises(StoreError, match="samples 0 to 3") as error:
        store.wait()
    assert ["samples 4 to 7" in error.value.__notes__[0], "samples 8 to 9" in error.value.__notes__[1]] == [True, True]
    store.wait()
    store.close()
