"""Real workloads to measure. Each module stands alone: nothing here imports perfsuite outside this room."""
