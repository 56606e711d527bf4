"""Structured mutators: files that are nearly what they should be."""
