"""The suite: what train steps cost, measured and gated by perfsuite itself."""
