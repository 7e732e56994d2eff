"""`perfsuite upgrade-check`: the same tests with two sets of packages, and what changed between them.

`environments` makes the two virtual environments, `runs` runs pytest in them (`child` is what such a pytest loads),
`changes` says what changed, in the words of `found`.
"""
