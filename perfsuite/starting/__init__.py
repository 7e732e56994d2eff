"""`perfsuite init`: a first perf test of a function, and what a project needs around it.

`project` looks at the project, `target` at the function, in a process of its own (`worker`). `first_test`, `settings`
and `workflows` make the texts, `writing` writes all of them or none, `start` joins these.
"""
