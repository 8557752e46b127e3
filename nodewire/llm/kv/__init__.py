"""What sessions remember: keys and values of the positions that came before, behind the one interface `Past`."""
