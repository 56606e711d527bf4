"""Reports: one frozen data model, one renderer per file."""
