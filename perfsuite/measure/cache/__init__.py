"""JAX's persistent compilation cache: the key of a program, why two keys differ, and what a second process compiles."""
