"""A folder that both sides see as a queue of evaluation jobs: searches put jobs in, workers on GPU hosts pull them."""
