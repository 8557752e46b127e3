"""A GGUF file's model as Hugging Face would lay it out: configuration, tensors, tokenizer."""
