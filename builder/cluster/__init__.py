"""Group strategy texts into strategies and strategies into directions."""
