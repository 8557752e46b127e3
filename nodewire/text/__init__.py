"""Token ids as text, the same for the driver that makes them and for the customer that reads them. No torch."""
