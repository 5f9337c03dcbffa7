"""Exercises that check themselves: `python -m exercises`."""
