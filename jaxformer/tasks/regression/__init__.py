"""Numbers for texts, such as the similarity of a pair."""
