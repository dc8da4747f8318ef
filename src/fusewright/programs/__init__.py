"""What a compiled program is, and what is done with it: simulated, called, written to disk."""
