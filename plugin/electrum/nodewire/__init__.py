"""An Electrum plugin: commands of its JSON-RPC by which nodewire uses a wallet. Each is called nodewire_NAME there.

An answer is an object. One with "refused" says what was not done: "not-found", "not-allowed" or "bad-input".
"""

from electrum.commands import plugin_command

NAME = "nodewire"


@plugin_command("wl", NAME)
async def info(self, wallet=None, plugin=None):
    """Who the wallet is: its node's key, and its network as BOLT 11 writes it."""
    return plugin.book(wallet).info()


@plugin_command("wl", NAME)
async def balance(self, wallet=None, plugin=None):
    """What its channels can spend, in msat."""
    return plugin.book(wallet).balance()


@plugin_command("wl", NAME)
async def invoice(self, amount_msat, description, expiry_s, wallet=None, plugin=None):
    """A new invoice that commits to the SHA-256 of a description.

    arg:int:amount_msat:what it asks for
    arg:str:description:the text that is hashed
    arg:int:expiry_s:how long it may be paid
    """
    return plugin.book(wallet).invoice(amount_msat, description, expiry_s)


@plugin_command("wl", NAME)
async def pay(self, bolt11, max_fee_msat, wait_s, wallet=None, plugin=None):
    """Pay an invoice once, and say what its record has after at most so long.

    arg:str:bolt11:the invoice
    arg:int:max_fee_msat:the most that routing may cost
    arg:float:wait_s:how long to wait for the end
    """
    return await plugin.book(wallet).pay(bolt11, max_fee_msat, wait_s)


@plugin_command("wl", NAME)
async def lookup(self, payment_hash, direction, wallet=None, plugin=None):
    """What the wallet's record has of a payment hash.

    arg:str:payment_hash:64 hex digits
    arg:str:direction:"in" or "out"
    """
    return plugin.book(wallet).lookup(payment_hash, direction)


@plugin_command("wl", NAME)
async def invoices(self, since_s=0, wallet=None, plugin=None):
    """The wallet's own invoices that were made at a moment or later, oldest first.

    arg:int:since_s:the moment, unix seconds
    """
    return plugin.book(wallet).invoices(since_s)


@plugin_command("wl", NAME)
async def hold_invoice(self, payment_hash, amount_msat, description, expiry_s, wallet=None, plugin=None):
    """An invoice whose payment is held, until it is settled with the preimage or given back.

    arg:str:payment_hash:64 hex digits
    arg:int:amount_msat:what it asks for
    arg:str:description:the text that is hashed
    arg:int:expiry_s:how long it may be paid
    """
    return plugin.book(wallet).hold_invoice(payment_hash, amount_msat, description, expiry_s)


@plugin_command("wl", NAME)
async def settle_hold(self, preimage, wait_s, wallet=None, plugin=None):
    """Take a held payment, and wait at most so long until it is there.

    arg:str:preimage:64 hex digits
    arg:float:wait_s:how long to wait
    """
    return await plugin.book(wallet).settle_hold(preimage, wait_s)


@plugin_command("wl", NAME)
async def cancel_hold(self, payment_hash, wait_s, wallet=None, plugin=None):
    """Give a held payment back, or withdraw an unpaid invoice, and wait at most so long until it has gone.

    arg:str:payment_hash:64 hex digits
    arg:float:wait_s:how long to wait
    """
    return await plugin.book(wallet).cancel_hold(payment_hash, wait_s)
