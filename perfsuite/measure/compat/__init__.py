"""What perfsuite must know of JAX's, the frameworks' and libtpu's internals: each private name is used here only."""
