"""Bonds that nobody holds: 2f+1 oracles can spend the coins, and after a time the provider alone can.

A registrar watches the coins, keeps the bonds' book, and signs statements. It cannot spend.
"""
