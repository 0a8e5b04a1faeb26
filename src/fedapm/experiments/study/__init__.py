"""A study: many data sets, methods and seeds in one resumable command, from one file."""
