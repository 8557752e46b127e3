"""What a customer asks for: generations, embeddings, calls with named tensors."""
