"""A generation that changes its ring: contenders, their race, and the migration."""
