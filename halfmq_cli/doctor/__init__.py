"""`halfmq doctor`: what is wrong with an installation, and the remedies."""
