"""The process that decides: it alone sees the reference, the seeds and the clock on the wall."""
