"""Links, rings and home routers."""
