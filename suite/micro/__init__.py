"""Micro-benchmarks of what a step is made of, and the ceilings of the machine they ran on."""
