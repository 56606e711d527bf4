"""PyTorch front end: a program of ATen calls -> ModelGraph, plus the map back. Imports torch."""
