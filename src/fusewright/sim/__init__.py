"""The simulator: the meaning of the kernel IR, and the judge of its synchronisation."""
