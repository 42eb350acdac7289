"""The prompts for every framework, equal in each process."""

LONG = "The quick brown fox jumps over the lazy dog. 0123456789 " * 4
PROMPTS = ("How are you?", "Shanghai is", LONG, LONG + "Please", LONG + "China")
NEW = 16  # tokens
END = 2  # the token that ends a text: banned, so that all are as long
