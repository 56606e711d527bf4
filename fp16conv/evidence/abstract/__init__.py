"""Abstract interpretation: what values can be at most, one transfer function per operator."""
