"""Steps captured once and replayed."""
