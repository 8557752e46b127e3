"""Events in SQLite: tables, one writer, readers, deletions and expiry."""
