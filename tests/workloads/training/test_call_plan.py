from perfsuite.workloads.training.call_plan import BoundedCache


def test_a_cache_forgets_its_oldest_entry_when_full():
    cache = BoundedCache(2)
    made = []
    for key in (1, 2, 1, 3, 2, 1):
        cache.get(key, lambda key=key: made.append(key) or key)
    assert made == [1, 2, 3, 1]
    assert len(cache) == 2
