"""What a daemon tells Prometheus: how families are declared and filled, and the endpoint that shows them.

Rooms count with plain integers where things happen; what follows from them is made when somebody scrapes.
"""
