"""What the first call of a function takes: tracing, lowering, and the program that comes of them."""
