"""The report of a run folder: pure functions from records to figures, tables and one offline page."""
