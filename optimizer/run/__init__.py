"""Room for runs: what a run directory says of itself, and opening one with its model, evaluation queue and memory."""
