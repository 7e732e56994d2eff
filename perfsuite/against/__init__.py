"""`perfsuite against` and `perfsuite bisect`: the same tests on two sides, and what changed between them.

`sides` says what a side is: packages, and a folder with the code. `environments` brings packages, `revisions` commits.
`runs` runs pytest on a side (`hooks.side_child` is what such a pytest loads). `changes` compares what is exact, `times`
what takes many processes, and `check` both. `bisection` searches the side since which a metric is worse.
"""
