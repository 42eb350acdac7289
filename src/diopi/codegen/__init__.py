"""What is written from the registry: C header, Protocol, reference pages, tables."""
