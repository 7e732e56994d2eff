"""Objects whose methods raise, as a user's may."""


class Hostile:
    """Equal to nothing that can be asked, and without a text."""

    def __eq__(self, other):
        raise RuntimeError("no equality")

    def __hash__(self):
        raise RuntimeError("no hash")

    def __repr__(self):
        raise RuntimeError("no text")


class Unreadable(Hostile):
    """One that can be called, and whose attributes raise."""

    def __call__(self):
        pass

    def __getattribute__(self, name):
        if name in ("__module__", "__qualname__"):
            raise RuntimeError(f"no {name}")
        return super().__getattribute__(name)
