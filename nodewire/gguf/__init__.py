"""GGUF files as bytes: what their headers say, bounded, and where their tensors lie. No engine is known here."""
