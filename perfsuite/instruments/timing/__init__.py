"""The instruments that read a clock: of one call, of two in turn, of several sizes, and of what a call waits for."""
