"""The plugin in Electrum's daemon."""

from electrum.plugin import BasePlugin, hook

from .book import Book


class Plugin(BasePlugin):
    """Has a book for each wallet that is open."""

    def __init__(self, parent, config, name):
        BasePlugin.__init__(self, parent, config, name)
        self._books = {}

    def book(self, wallet):
        if wallet not in self._books:
            self._books[wallet] = Book(wallet, self.get_storage(wallet))
        return self._books[wallet]

    @hook
    def close_wallet(self, wallet, *_):
        book = self._books.pop(wallet, None)
        if book is not None:
            book.close()
