import itertools

import pytest

from perfsuite.workloads.extraction.batching import fixed_size_batches

SEQUENCES = [[5, 6, 7], [8], [1, 2, 3, 4, 5], [9, 9], [3]]
PAD = 99


def batches(**changes):
    return list(fixed_size_batches(**{"sequences": SEQUENCES, "batch_size": 2, "pad_id": PAD, **changes}))


def test_a_batch_is_padded_on_the_right_and_says_what_is_real():
    batch = next(fixed_size_batches(SEQUENCES, 2, length=4, pad_id=PAD))
    assert batch.ids.tolist() == [[5, 6, 7, PAD], [8, PAD, PAD, PAD]]
    assert batch.mask.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert batch.lengths.tolist() == [3, 1]
    assert batch.indices.tolist() == [0, 1]
    assert batch.rows.tolist() == [True, True]


def test_a_batch_gets_the_smallest_length_that_holds_its_longest_sequence():
    assert [batch.ids.shape[1] for batch in batches(length=(2, 3, 6, 9))] == [3, 6, 2]


def test_with_declared_lengths_a_stream_without_end_is_read_a_batch_at_a_time():
    stream = itertools.cycle([[1, 2]])
    batch = next(fixed_size_batches(stream, 3, length=2, pad_id=0))
    assert batch.indices.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"length": 0}, "length must be one or more increasing numbers of tokens, at least 1, got 0"),
        ({"pad_id": 2**31}, "pad_id must be an int32"),
    ],
)
def test_arguments_that_make_no_sense_are_errors_at_once(changes, message):
    with pytest.raises(ValueError, match=message):
        fixed_size_batches(**{"sequences": SEQUENCES, "batch_size": 2, "length": 5, "pad_id": 0, **changes})


@pytest.mark.parametrize("length", [4, None])
@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ([], "sequence 1 is empty"),
        ([1.5], r"sequence 1 must be integers \[tokens\], got float64 of shape \(1,\)"),
        ([[1, 2]], r"sequence 1 must be integers \[tokens\], got int64 of shape \(1, 2\)"),
        ([0, 2**31], "sequence 1 has ids beyond int32: 0 to 2147483648"),
    ],
)
def test_a_sequence_that_is_none_is_an_error_naming_its_place(length, sequence, message):
    with pytest.raises(ValueError, match=message):
        batches(sequences=[[1], sequence], length=length)


def test_a_sequence_that_is_too_long_is_an_error_naming_both_lengths():
    with pytest.raises(ValueError, match="sequence 2 has 5 tokens, but the longest length is 4"):
        batches(length=(2, 4))
