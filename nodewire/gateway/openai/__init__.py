"""OpenAI's requests and answers."""
