"""Read other people's logs: formats found by content, every record a step or quarantined, nothing executed."""
