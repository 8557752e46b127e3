"""Commands that check the public record."""
