"""OpCapture: the calls of a program written to disk, and the two formats of the files."""
