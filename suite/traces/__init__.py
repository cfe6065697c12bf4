"""Recorded traffic: one file per format, each turning a file's rows into times, lengths and images."""
