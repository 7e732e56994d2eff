"""Masked-LM batches in NumPy: random sequences of random lengths, masked as in Devlin et al. 2018 (arXiv:1810.04805).

Sequences are sorted into buckets of declared lengths, so that a compiled step sees a known, small set of shapes.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

PAD, CLS, SEP, MASK = range(4)
"""Ids of the special tokens. Ordinary tokens start at `FIRST_TOKEN`."""
FIRST_TOKEN = 4

IGNORED_LABEL = -100
"""Label of a position that takes no part in the loss."""


def mlm_batches(
    vocab_size: int,
    batch_size: int,
    *,
    buckets: Sequence[int] = (64, 128, 256, 512),
    num_batches: int | None = None,
    seed: int = 0,
    mean_length: float | None = None,
    length_spread: float = 0.5,
    selected_fraction: float = 0.15,
    masked_fraction: float = 0.8,
    random_fraction: float = 0.1,
) -> Iterator[dict[str, np.ndarray]]:
    """Batches of `{"input_ids", "attention_mask", "labels"}`, each int32 `[batch_size, bucket]`.

    A sequence is `CLS`, ordinary tokens, `SEP`, and `PAD` up to the smallest of `buckets` that holds it. Lengths are
    log-normal with mean `mean_length` tokens (by default half the longest bucket) and standard deviation
    `length_spread` of the logarithm, cut to 3 tokens and the longest bucket. Ordinary tokens follow Zipf's law, so
    that there is something to learn. A batch is yielded when its bucket is full: short and long ones come in no fixed
    order.

    Of each sequence's ordinary tokens `selected_fraction`, rounded, and at least one, get their id as label, all other
    positions `IGNORED_LABEL`. Of the selected, `masked_fraction` become `MASK`, `random_fraction` a random ordinary
    token, and the rest stay, drawn token by token.

    The same arguments and the same NumPy give the same batches. Without `num_batches` they never end.

    Raises `ValueError`, at once, for arguments that make no sense.
    """
    buckets = tuple(buckets)
    _check(vocab_size, batch_size, buckets, num_batches, length_spread)
    if mean_length is None:
        mean_length = buckets[-1] / 2
    if not 3 <= mean_length <= buckets[-1]:
        raise ValueError(f"mean_length must be between 3 and the longest bucket, {buckets[-1]}, got {mean_length}")
    _check_fractions(selected_fraction, masked_fraction, random_fraction)
    rng = np.random.default_rng(seed)
    sequences = _sequences(vocab_size, buckets[-1], rng, mean_length, length_spread)
    fractions = {
        "selected_fraction": selected_fraction,
        "masked_fraction": masked_fraction,
        "random_fraction": random_fraction,
    }
    batches = (
        {"input_ids": masked, "attention_mask": (ids != PAD).astype(np.int32), "labels": labels}
        for ids in _full_buckets(sequences, batch_size, buckets)
        for masked, labels in [mask_tokens(ids, vocab_size, rng, **fractions)]
    )
    return itertools.islice(batches, num_batches)


def mask_tokens(
    input_ids: np.ndarray,
    vocab_size: int,
    rng: np.random.Generator,
    *,
    selected_fraction: float = 0.15,
    masked_fraction: float = 0.8,
    random_fraction: float = 0.1,
) -> tuple[np.ndarray, np.ndarray]:
    """Masked ids and labels, both int32 `[batch, sequence]`, for ids of that shape; see `mlm_batches`.

    Special tokens are never selected. Raises `ValueError` for fractions that make no sense.
    """
    _check_fractions(selected_fraction, masked_fraction, random_fraction)
    ordinary = input_ids >= FIRST_TOKEN
    available = ordinary.sum(axis=1)
    wanted = np.minimum(np.maximum(np.rint(selected_fraction * available), 1), available)
    # A random order in which special tokens come last; the first few are the selected ones.
    order = np.where(ordinary, rng.random(input_ids.shape), np.inf).argsort(axis=1, kind="stable")
    selected = np.zeros(input_ids.shape, bool)
    np.put_along_axis(selected, order, np.arange(input_ids.shape[1]) < wanted[:, None], axis=1)

    fate = rng.random(input_ids.shape)
    replacement = rng.integers(FIRST_TOKEN, vocab_size, input_ids.shape)
    masked = np.where(selected & (fate < masked_fraction), MASK, input_ids)
    randomised = selected & (fate >= masked_fraction) & (fate < masked_fraction + random_fraction)
    masked = np.where(randomised, replacement, masked)
    return masked.astype(np.int32), np.where(selected, input_ids, IGNORED_LABEL).astype(np.int32)


def _sequences(
    vocab_size: int, longest: int, rng: np.random.Generator, mean_length: float, length_spread: float
) -> Iterator[np.ndarray]:
    """`CLS`, ordinary tokens and `SEP`, of random lengths, without end."""
    frequency = 1 / np.arange(1, vocab_size - FIRST_TOKEN + 1)
    frequency /= frequency.sum()
    # The mean of a log-normal is exp(mu + sigma^2 / 2).
    mu = math.log(mean_length) - length_spread**2 / 2
    while True:
        length = int(np.clip(np.rint(rng.lognormal(mu, length_spread)), 3, longest))
        yield np.array([CLS, *(FIRST_TOKEN + rng.choice(frequency.size, length - 2, p=frequency)), SEP], np.int32)


def _full_buckets(sequences: Iterable[np.ndarray], batch_size: int, buckets: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Padded ids `[batch_size, bucket]`, whenever so many sequences of a bucket are there."""
    waiting: dict[int, list[np.ndarray]] = {bucket: [] for bucket in buckets}
    for sequence in sequences:
        bucket = next(bucket for bucket in buckets if len(sequence) <= bucket)
        waiting[bucket].append(np.pad(sequence, (0, bucket - len(sequence)), constant_values=PAD))
        if len(waiting[bucket]) == batch_size:
            yield np.stack(waiting[bucket])
            waiting[bucket].clear()


def _check(
    vocab_size: int, batch_size: int, buckets: tuple[int, ...], num_batches: int | None, length_spread: float
) -> None:
    if vocab_size < FIRST_TOKEN + 2:
        raise ValueError(
            f"vocab_size must be at least {FIRST_TOKEN + 2}: {FIRST_TOKEN} special tokens and two ordinary ones, "
            f"so that a random token can be another one; got {vocab_size}"
        )
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not buckets:
        raise ValueError("buckets must not be empty")
    if buckets[0] < 3:
        raise ValueError(f"buckets must hold CLS, one token and SEP: at least 3, got {buckets[0]}")
    if any(a >= b for a, b in itertools.pairwise(buckets)):
        raise ValueError(f"buckets must increase, got {buckets}")
    if num_batches is not None and num_batches < 0:
        raise ValueError(f"num_batches must not be negative, got {num_batches}")
    if not length_spread >= 0:
        raise ValueError(f"length_spread must not be negative, got {length_spread}")


def _check_fractions(selected: float, masked: float, random: float) -> None:
    if not 0 < selected <= 1:
        raise ValueError(f"selected_fraction must be in (0, 1], got {selected}")
    if not 0 <= masked <= 1:
        raise ValueError(f"masked_fraction must be in [0, 1], got {masked}")
    if not (random >= 0 and masked + random < 1 + 1e-9):  # 0.8 + 0.2 may be a little more than 1
        raise ValueError(f"random_fraction must be in [0, 1 - masked_fraction], got {random} with {masked} masked")
