"""What became of the metrics: two baseline files held against each other, and one over its git history.

Nothing here prints, and nothing imports jax, nor the `report` extra before a series is long enough for change points.
`git` reads a repository, `source` a file or a revision of it, `comparing` holds two files against each other,
`reading` has a file over its commits, `steps` finds where a metric moved.
"""
