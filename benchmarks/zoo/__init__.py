"""Real trained models that PyPI packages carry, with data that fits each of them."""
