"""A model as a document: manifest, families, signature, text."""
