"""`perfsuite against` and `perfsuite bisect`: the same tests on two sides, and what changed between them.

`sides` are packages and a folder with the code. `runs` runs pytest on a side (`hooks.side_child` is what such a pytest
loads), and `notes` is what the two exchange. `changes` compares two sides. `bisection` searches the side since which a
metric is worse.
"""
