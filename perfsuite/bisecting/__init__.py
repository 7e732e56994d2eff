"""`perfsuite bisect`: since which commit, or which release of which package, a metric is worse.

`graph` has the steps and which of them to try next, `search` tries them. `commits` and `releases` say what the steps
are, `packages` which of several packages it is. `metric` reads and judges a metric at a step, `trying` runs the test
there, `kept` remembers it. `bisection` joins them, in the words of `found`.
"""
