"""The declarations, one file per family; importing a file registers its ops."""
