"""What a run found, in the forms that other projects read: kernel packages, benchmark solutions, training data."""
