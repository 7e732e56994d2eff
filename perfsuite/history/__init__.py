"""What became of the metrics: two baseline files compared with each other, and one file over its git history.

Nothing here prints. Nothing imports jax, and only a long noisy series imports `ruptures`, of the extra `report`.
"""


class HistoryError(Exception):
    """A file, a revision or a history cannot be read: the message names it, and says what to do."""
