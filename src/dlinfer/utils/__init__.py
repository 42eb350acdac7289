"""Published names that frameworks import."""
