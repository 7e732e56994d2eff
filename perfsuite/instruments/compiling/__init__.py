"""The instruments of what comes before a call runs: tracing, lowering, compiling, and the cache of programs."""
