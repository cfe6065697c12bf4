"""Where and when commands run: one contract, several devices."""
