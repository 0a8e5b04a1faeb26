"""A study in numbers and words: everything here is made of its summary.csv."""
