"""Masks: every message is hidden by numbers that cancel in the sum, so that the server learns the sum alone.

``fixed_point`` makes whole numbers of a message, ``keys`` and ``streams`` make the masks, ``groups`` says for whom a
client may mask the same message, and ``method`` is a layer around a method.
"""
