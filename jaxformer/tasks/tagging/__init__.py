"""Tags of words, such as names of people and places."""
