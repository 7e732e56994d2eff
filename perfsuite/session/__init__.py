"""One pytest session with --perf: its mode, its baselines, and what each test measured, as plain values."""
