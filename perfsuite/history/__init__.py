"""What became of the metrics: two baseline files compared with each other, and one file over its git history.

Nothing here prints, and nothing imports jax or NumPy.
"""


class HistoryError(Exception):
    """A file, a revision or a history cannot be read: the message names it, and says what to do."""
