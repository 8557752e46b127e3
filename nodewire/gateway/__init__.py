"""OpenAI's HTTP API in front of the customer role: who speaks it buys on the market. Knows no engine."""
