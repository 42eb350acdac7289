"""Tools of one file each."""
