"""Events and inventories between the members of a swarm."""
