"""One HTML page from whatever a run has written: it opens anywhere, without a network."""
