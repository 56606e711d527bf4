"""Measurements that print the tables of the documentation."""
