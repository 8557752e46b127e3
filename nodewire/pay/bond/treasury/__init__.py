"""The treasury: its book and rules, which every holder keeps, how it is asked over HTTP, and who asks."""
