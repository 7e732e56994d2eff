import numpy as np
import pytest

from perfsuite.workloads.training.mlm import CLS, FIRST_TOKEN, IGNORED_LABEL, MASK, PAD, SEP, mask_tokens, mlm_batches

BUCKETS = (16, 32, 64)
VOCABULARY = 200


def batches(count=40, **changes):
    arguments = {"vocab_size": VOCABULARY, "batch_size": 8, "buckets": BUCKETS, "num_batches": count, **changes}
    return list(mlm_batches(**arguments))


def test_same_seed_gives_the_same_batches_and_another_seed_does_not():
    first, again, other = batches(seed=3), batches(seed=3), batches(seed=4)
    for a, b in zip(first, again, strict=True):
        assert a.keys() == b.keys()
        assert all(np.array_equal(a[name], b[name]) for name in a)
    assert any(not np.array_equal(a["input_ids"], b["input_ids"]) for a, b in zip(first, other, strict=True))


def test_sequences_are_framed_padded_and_in_the_smallest_bucket_that_holds_them():
    for batch in batches():
        ids = np.where(batch["labels"] == IGNORED_LABEL, batch["input_ids"], batch["labels"])
        lengths = batch["attention_mask"].sum(axis=1)
        for row, mask, length in zip(ids, batch["attention_mask"], lengths, strict=True):
            assert np.array_equal(mask, np.arange(len(row)) < length)
            assert (row[0], row[length - 1]) == (CLS, SEP)
            assert np.all(row[length:] == PAD)
            assert np.all((row[1 : length - 1] >= FIRST_TOKEN) & (row[1 : length - 1] < VOCABULARY))
            assert len(row) == min(bucket for bucket in BUCKETS if bucket >= length)


def test_lengths_vary_about_the_mean_that_was_asked_for():
    made = batches(400, buckets=(1024,), mean_length=100, length_spread=0.3)
    lengths = np.concatenate([batch["attention_mask"].sum(axis=1) for batch in made])
    assert lengths.mean() == pytest.approx(100, rel=0.03)
    assert np.log(lengths).std() == pytest.approx(0.3, rel=0.05)


def test_fifteen_percent_of_ordinary_tokens_are_selected_and_at_least_one():
    for batch in batches():
        ordinary = batch["attention_mask"].sum(axis=1) - 2
        selected = (batch["labels"] != IGNORED_LABEL).sum(axis=1)
        assert np.array_equal(selected, np.maximum(1, np.rint(0.15 * ordinary)))
    _, labels = mask_tokens(np.array([[CLS, FIRST_TOKEN, SEP]]), VOCABULARY, np.random.default_rng(0))
    assert labels.tolist() == [[IGNORED_LABEL, FIRST_TOKEN, IGNORED_LABEL]]


def test_selected_tokens_are_masked_randomised_and_kept_80_10_10():
    ids = np.random.default_rng(0).integers(FIRST_TOKEN, 1000, (200, 512)).astype(np.int32)
    inputs, labels = mask_tokens(ids, 1000, np.random.default_rng(1))
    selected = labels != IGNORED_LABEL
    assert np.array_equal(inputs[~selected], ids[~selected])
    assert np.array_equal(labels[selected], ids[selected])
    masked = inputs[selected] == MASK
    kept = inputs[selected] == ids[selected]
    shares = masked.mean(), (~masked & ~kept).mean(), kept.mean()
    assert shares == pytest.approx((0.8, 0.1, 0.1), abs=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 5}, "vocab_size must be at least 6"),
        ({"buckets": ()}, "buckets must not be empty"),
        ({"buckets": (2, 8)}, "at least 3, got 2"),
        ({"buckets": (32, 16)}, "buckets must increase"),
        ({"num_batches": -1}, "num_batches must not be negative"),
        ({"mean_length": 65}, "mean_length must be between 3 and the longest bucket, 64"),
        ({"selected_fraction": 0.0}, "selected_fraction"),
        ({"random_fraction": 0.3}, "random_fraction"),
    ],
)
def test_senseless_argument_is_an_error_at_once_and_named(changes, message):
    arguments = {"vocab_size": VOCABULARY, "batch_size": 8, "buckets": BUCKETS, **changes}
    with pytest.raises(ValueError, match=message):
        mlm_batches(**arguments)
