"""`perfsuite against`: the same tests on two sides, and what changed between them.

`sides` says what a side is: packages, and a folder with the code. `environments` makes virtual environments, `runs`
runs pytest on a side (`hooks.side_child` is what such a pytest loads), `changes` says what changed, in the words of
`found`.
"""
