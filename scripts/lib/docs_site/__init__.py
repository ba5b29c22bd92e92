"""Makes the documentation's site: pages of the checkout, and reference pages made from the code, for Sphinx."""
