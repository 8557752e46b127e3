"""Markets as processes of this machine, for what measures them (`bench/`) and what is shown with them (`demo/`)."""
