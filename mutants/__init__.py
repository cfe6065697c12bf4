"""Planted faults: small patches of the code, each of which some test must notice (`make mutants`)."""
