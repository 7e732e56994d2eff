"""What perfsuite knows about the internals of JAX, the frameworks and libtpu."""
