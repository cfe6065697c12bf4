"""The rules of validity, by what they look at; suite/checks.py asks them all."""
