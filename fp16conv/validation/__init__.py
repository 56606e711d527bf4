"""Distance between models: metrics, comparison, attribution of error to operators."""
