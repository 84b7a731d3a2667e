"""Room for prompting: what a model is shown, in which words, and how its answer is read."""
