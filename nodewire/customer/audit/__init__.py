"""A job's trail: from its plan to its payments, checked line by line against the public record. `nodewire audit`."""
