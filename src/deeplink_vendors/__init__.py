"""One folder per vendor. Nobody imports this package: entry points do."""
