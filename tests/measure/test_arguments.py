"""`measure.arguments`: the paths of a call's arguments."""

from perfsuite.measure.arguments import leaves_with_paths


def test_leaves_have_the_paths_by_which_the_user_passed_them():
    found = dict(leaves_with_paths(({"kernel": 1}, [2, None]), {"rate": 3}))
    assert found == {"args[0]['kernel']": 1, "args[1][0]": 2, "kwargs['rate']": 3}
