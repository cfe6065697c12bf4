"""Captures of profilers beside our own records: imported, compared, and written for viewers."""
