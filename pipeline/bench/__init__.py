"""Room for benchmarks of the field: their tasks, the candidates that others wrote for them, and what came of these."""
