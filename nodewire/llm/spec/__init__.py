"""A decoder in numbers: configuration, parameters, memory."""
