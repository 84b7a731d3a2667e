"""Offline stage: read, describe, embed, cluster, link, validate."""
