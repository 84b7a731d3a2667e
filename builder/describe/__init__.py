"""Describe recorded steps: state before each, code difference, strategy text, error class."""
