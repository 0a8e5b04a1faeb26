"""Measurements of speed, of hostile clients, and of what privacy costs."""
