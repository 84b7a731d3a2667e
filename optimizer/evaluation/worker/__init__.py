"""Life and death of the other processes: who builds, who measures, who has a device now."""
