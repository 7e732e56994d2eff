"""The parts of a fingerprint by name. A report reads them too, and needs no jax for it."""

AROUND = "around"

PARTS = {
    AROUND: "the versions, the device or JAX's options",
    "inputs": "the arguments",
    "programs": "the compiled programs",
    "host calls": "the host calls",
    "python": "the Python code",
}
"""The parts, and what a message calls them, the one first that explains the others."""
