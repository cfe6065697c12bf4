"""Scenarios, experiments, statistics and reports over the runner."""
