"""Tuning: the fastest plan whose measured error meets a tolerance."""
