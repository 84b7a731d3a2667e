"""Room for coding agents: a server that gives them the judge and the memory as tools, and logs what they do."""
