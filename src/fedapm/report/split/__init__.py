"""The page of a search of the split, and its picture."""
