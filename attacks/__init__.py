"""Attackers: what a killed process, a full disk, a damaged file or a hostile sender can do to fedapm.

``python -m attacks`` (or ``make attack``) runs all of them and prints one table. docs/explanation/reliability.md says
what is promised and how each promise is attacked.
"""
